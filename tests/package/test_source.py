"""What the source of glinfer never does: run text as code, unpickle, start a shell, reach for the network.

It is read as a syntax tree, so nothing has to run. Each rule is shown planted bad source too. What a run really reaches
for is watched in test_quiet.py.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator

from sources import Nodes, nodes_of, package_sources

# What may be imported, by the distributions that the wheel asks for; test_wheel.py compares with its metadata.
CORE = {"moderngl", "glcontext", "numpy", "safetensors", "tokenizers", "jinja2", "click", "rich"}
OF_CORE = CORE | {"markupsafe"}  # Jinja's own, of which Jinja gives out no other name
EXTRAS = {
    *(
        "gguf",
        "llguidance",
        "matplotlib",
        "pyarrow",
        "starlette",
        "uvicorn",
        "httptools",
        "pydantic",
        "prometheus_client",
    ),
    *("huggingface_hub", "PIL", "llm"),
}

CODE = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
RUNNERS = {"code", "codeop", "runpy", "imp", "pty", "multiprocessing", "concurrent", "asyncio", "subprocess"}
NETWORK = {
    *("socket", "ssl", "socketserver", "select", "selectors", "http", "urllib", "ftplib", "smtplib", "poplib"),
    *("imaplib", "telnetlib", "xmlrpc", "webbrowser", "wsgiref", "requests", "httpx", "urllib3", "aiohttp"),
    *("websockets", "huggingface_hub"),
}
OF_OS = ("system", "popen", "exec", "spawn", "posix_spawn", "fork", "startfile")
PRINTING = {"print", "Console", "rich.print", "rich.console.Console"}
PRINTING |= {f"click.{name}" for name in ("echo", "secho", "echo_via_pager", "prompt", "confirm", "progressbar")}
ATTRIBUTES = {name.rpartition(".")[2] for name in PRINTING} | {"write", "print_exc"}
SWITCHES = {"shell": False, "allow_pickle": False, "weights_only": True, "trust_remote_code": False}

ALLOWED = {
    # The process in which a chat template is rendered, by an argument list and never by a shell.
    ("text/own_process.py", "subprocess"),
    ("text/limited.py", "runpy"),  # a script of the package, in such a process
    ("cli/tour.py", "webbrowser"),  # opens the page that it wrote
    # `glinfer serve-web` answers browsers on the loopback address.
    ("export/serve.py", "http"),
    # `glinfer serve` listens where it is told to, and has an event loop; it parses Host and Origin.
    ("server/run.py", "socket"),
    *((f"server/{name}.py", "asyncio") for name in ("connections", "off_loop", "run", "streaming", "worker")),
    ("server/off_loop.py", "concurrent"),  # threads, and no processes
    ("engine/threaded.py", "asyncio"),
    ("engine/threaded.py", "concurrent"),
    ("llm_plugin.py", "asyncio"),
    # Batches ask the same routes, without a network.
    ("jobs/local.py", "asyncio"),
    # A process for each device, by an argument list and never by a shell.
    ("jobs/process.py", "subprocess"),
    ("jobs/claims.py", "subprocess"),
    ("ray/member.py", "socket"),  # to find out whether a cluster answers
    ("server/connections.py", "http"),  # names of status codes
    ("server/auth.py", "urllib"),
    # Models by name: the one client of a network, and the parts of addresses.
    *((f"hub/{name}.py", "huggingface_hub") for name in ("cache", "client")),
    ("hub/client.py", "urllib"),
    ("hub/names.py", "urllib"),
    # Names from a table beside the call.
    ("__init__.py", "import_module"),
    ("cli/app.py", "import_module"),
    ("families/__init__.py", "import_module"),
    ("errors.py", "import_module"),  # required(), whose callers write the name out
    ("engine/tour.py", "import_module"),  # the exporter, a later room, when a notebook asks for the page
    # The one place that prints; the bars of rich; JSON on a pipe to the process that asked for it.
    ("terminal.py", "click.echo"),
    ("server/errors.py", "click.echo"),  # of what is printable
    ("cli/common.py", "Console"),
    ("gl/cuda.py", "print"),
}


def imports(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Line and full name of all that is imported, wherever in the file; ``from os import system`` is os.system."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def text_as_code(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Names that run text as code, called or passed on; and modules that are imported by a computed name."""
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in CODE:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("builtins."):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "required"):
            yield from () if isinstance(node.args[0], ast.Constant) else ((node.lineno, _called(node)),)


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def modules_that_do_too_much(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Imports of what unpickles, starts processes or speaks to others."""
    for line, name in imports(nodes):
        if (root := name.split(".")[0]) in PICKLES | RUNNERS | NETWORK:
            yield line, root


def processes(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """What of ``os`` starts a process, imported by name or used."""
    used = ((n.lineno, ast.unparse(n)) for n in nodes if isinstance(n, ast.Attribute))
    for line, name in (*imports(nodes), *used):
        module, _, what = name.rpartition(".")
        if module == "os" and what.startswith(OF_OS):
            yield line, name


def unsafe_switches(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Options set to what runs a shell, or code that came with data; a computed value may be either."""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg in SWITCHES:
            if not (isinstance(node.value, ast.Constant) and node.value.value is SWITCHES[node.arg]):
                yield node.value.lineno, f"{node.arg}={ast.unparse(node.value)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"yaml.load", "tempfile.mktemp"}:
            yield node.lineno, ast.unparse(node.func)


def undeclared(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Imports of what neither Python nor the wheel brings along; what is for a type checker alone is not run."""
    checked = [node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    unseen = {
        line for node in checked for line, _ in imports(tuple(each for part in node.body for each in ast.walk(part)))
    }
    for line, name in imports(nodes):
        root = name.split(".")[0]
        if line not in unseen and root not in sys.stdlib_module_names | OF_CORE | EXTRAS | {"glinfer", "__future__"}:
            yield line, root


def prints(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Output that does not go through ``emit`` of glinfer/terminal.py, which shows what a terminal would obey."""
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in PRINTING:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            name = ast.unparse(node)
            if name in PRINTING or name.endswith((".stdout.write", ".stderr.write", ".print_exc")):
                yield node.lineno, name
        elif isinstance(node, ast.ImportFrom) and node.module == "click":
            yield from ((node.lineno, each.name) for each in node.names if f"click.{each.name}" in PRINTING)


Rule = Callable[[Nodes], Iterator[tuple[int, str]]]
RULES: tuple[Rule, ...] = (text_as_code, modules_that_do_too_much, processes, unsafe_switches, undeclared, prints)


def test_the_package_keeps_the_rules() -> None:
    complaints, used = [], set()
    for name, source in package_sources().items():
        for rule in RULES:
            for line, what in rule(nodes_of(source)):
                used.add((name, what))
                if (name, what) not in ALLOWED:
                    complaints.append(f"glinfer/{name}:{line}: {what} ({rule.__name__})")
    assert not complaints, "\n".join(complaints)
    assert used >= ALLOWED, "an exception is not needed any more"


BAD = (
    (processes, "import os\nos.system('ls')"),
    (processes, "from os import popen"),
    (processes, "import os\nos.execvp(name, arguments)"),
    (unsafe_switches, "subprocess.run(line, shell=True)"),
    (unsafe_switches, "subprocess.run(line, shell=choice)"),
    (unsafe_switches, "np.load(path, allow_pickle=True)"),
    (unsafe_switches, "torch.load(path, weights_only=False)"),
    (unsafe_switches, "yaml.load(text)"),
    (undeclared, "import scipy.sparse"),
    (undeclared, "def late():\n    from cv2 import imread"),
)


def test_the_rules_catch_bad_source() -> None:
    """Of rules that need no exception above; that good source passes, the package shows."""
    for rule, source in BAD:
        assert len(list(rule(nodes_of(source)))) == 1, source
