from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Optional, Union

Headers = list[tuple[str, str]]
RequestBody = Optional[Union[bytes, Iterable[bytes]]]
Done = Callable[[Any, Optional[BaseException]], object]

class Ticket:
    def cancel(self) -> None: ...

class Body:
    def next(self, timeout: Optional[float] = None) -> Optional[bytes]: ...
    def next_soon(self, done: Done) -> Ticket: ...
    def close(self) -> None: ...

class Core:
    @staticmethod
    def start(settings: dict[str, str], helper: str) -> Core: ...
    @property
    def work_root(self) -> Path: ...
    @property
    def lock_fd(self) -> int: ...
    def request(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: RequestBody,
        timeout: Optional[float],
        whole: bool,
    ) -> tuple[int, Headers, Union[bytes, Body]]: ...
    def request_soon(
        self,
        method: str,
        target: str,
        headers: Headers,
        body: RequestBody,
        whole: bool,
        done: Done,
    ) -> Ticket: ...
    def stop(self) -> None: ...

def setting_names() -> list[str]: ...
def check_settings(settings: dict[str, str]) -> None: ...
def refuse_command(
    line: str, settings: Optional[dict[str, str]], helper: str
) -> Optional[tuple[str, Optional[str]]]: ...
