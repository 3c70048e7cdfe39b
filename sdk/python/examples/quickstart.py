"""The same script in this process and over HTTP: with CELLBLOCK_URL it uses that service, without it none is needed."""

import os

from cellblock import SandboxClient


def main() -> None:
    """A REPL, a file, a conversation."""
    with SandboxClient(server_url=os.environ.get("CELLBLOCK_URL")) as client:
        # A REPL: variables stay from call to call, and output comes while the code runs.
        client.run_code("squares = [n * n for n in range(4)]")
        result = client.run_code(
            "print(sum(squares)); squares", on_stdout=lambda text: print("live:", text.strip())
        )
        print(result.output.splitlines(), result.state)

        # A file becomes an artifact with a link.
        made = client.run_code("open('squares.csv', 'w').write(','.join(map(str, squares)))")
        print(made.artifacts[0].path, client.files.read("squares.csv"))

        # A conversation's bash sandbox, under the command policy.
        client.get_or_create_session(user_id="ada", thread_id=f"quickstart-{os.getpid()}")
        print(client.execute("echo 'b\na' | sort | head -n 1").stdout.strip())
        print(client.validate_command("curl example.com").reason)
        client.close_session()


if __name__ == "__main__":
    main()
