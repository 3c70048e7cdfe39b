"""The Cellblock kernel: a supervisor that talks to the host and a worker that runs the cells.

`start` puts it together; `supervisor` never runs user code, `worker` does nothing else.
Both halves speak the frames of docs/PROTOCOL.md and use nothing but the standard library.
"""
