"""`hexprefect`: every command, mounted. `hexprefect COMMAND --help` teaches each."""

from __future__ import annotations

import typer

from hexprefect import __version__
from hexprefect.commands import automations, fleet, policy, pools, queries, reports, store
from hexprefect.commands.ask import ask_command
from hexprefect.commands.demo import demo_command, up_command
from hexprefect.commands.evaluate import compare_command, evaluate_command
from hexprefect.commands.mcp import mcp_command
from hexprefect.commands.metrics import metrics_command
from hexprefect.commands.profiles import learn_command, profile_command
from hexprefect.commands.top import top_command
from hexprefect.simulator.command_line import reproduce, simulate, tune

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Answer questions with SQL, scheduled over unequal GPUs. "
    'Start with `hexprefect demo`, or `hexprefect ask "How many …?" --database URL`.',
)
app.command("ask")(ask_command)
app.command("eval")(evaluate_command)
app.command("eval-compare")(compare_command)
app.command("demo")(demo_command)
app.command("up")(up_command)
app.command("top")(top_command)
app.command("metrics")(metrics_command)
app.command("mcp")(mcp_command)
app.command("simulate")(simulate)
app.command("tune")(tune)
app.command("reproduce")(reproduce)
fleet.instances.command("profile")(profile_command)
fleet.instances.command("learn")(learn_command)
app.add_typer(queries.app, name="queries")
app.add_typer(fleet.instances, name="instances")
app.add_typer(fleet.tenants, name="tenants")
app.add_typer(pools.app, name="pools")
app.add_typer(reports.app, name="reports")
app.add_typer(automations.app, name="automations")
app.add_typer(policy.app, name="policy")
app.add_typer(store.app, name="store")


@app.command(
    "emulate",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def emulate(context: typer.Context) -> None:
    """Run emulated vLLM instances, for tests and trials without GPUs. See `emulate --help`."""
    from hexprefect.commands.emulate import emulate as serve

    raise typer.Exit(serve(context.args))


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """The console script."""
    app()
