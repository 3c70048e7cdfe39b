"""The floor: parse, compile, run and answer a cell over a Unix socket; no service, no container.

Serves one client on the socket path given as its argument. Captures no more than what `print`
writes.
"""

import ast
import io
import json
import socket
import sys


def main() -> None:
    """Listen, say `ready`, and answer length-prefixed JSON until the client hangs up."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(sys.argv[1])
    server.listen(1)
    print("ready", flush=True)
    link, _ = server.accept()
    names: dict = {"x": 0}
    sys.stdout = printed = io.StringIO()

    def receive(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = link.recv(count - len(data))
            if not more:
                sys.exit()
            data += more
        return data

    while True:
        code = json.loads(receive(int.from_bytes(receive(4), "big")))["code"]
        tree = ast.parse(code)
        last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(last, "<cell>", "eval"), names)
        output = printed.getvalue()
        if output:
            printed.seek(0)
            printed.truncate()
        if value is not None:
            output += repr(value) + "\n"
        answer = json.dumps({"output": output}).encode()
        link.sendall(len(answer).to_bytes(4, "big") + answer)


main()
