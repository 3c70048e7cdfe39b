"""When to ask again, and how long to wait before: only if the service said that it did nothing, or was not reached.

Pure; those who wait are elsewhere.
"""

from __future__ import annotations

import random
from typing import Optional, Union

from ._exchange import NotSent, Reply, Request
from .errors import ConnectionFailedError

SAFE_STATUSES = (429, 503)
FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 30.0

#: An answer, or that nobody listens.
Outcome = Union[Reply, NotSent]


def delay(request: Request, attempt: int, retries: int, outcome: Outcome) -> Optional[float]:
    """Seconds to wait before the next attempt (the first is 0), or None if there is to be none."""
    if attempt >= retries:
        return None
    backoff = min(FIRST_DELAY_SECONDS * 2.0**attempt, LONGEST_DELAY_SECONDS)
    # Callers that were refused together must not come back together.
    backoff *= random.uniform(0.75, 1.25)
    if not isinstance(outcome, Reply):
        return backoff
    if outcome.status not in SAFE_STATUSES or outcome.status in request.also_good:
        return None
    if outcome.retry_after is None:
        return backoff
    return outcome.retry_after if outcome.retry_after <= LONGEST_DELAY_SECONDS else None


def result(request: Request, outcome: Outcome) -> Reply:
    """What an attempt that is the last one comes to."""
    if isinstance(outcome, Reply):
        return outcome
    raise ConnectionFailedError(
        f"no service listens there: {outcome}", code="unavailable", request_id=request.id
    )
