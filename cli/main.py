"""The command line: one explicit table of commands, and how errors leave.

Exit codes: 0 done, 1 done with findings, 2 bad input, 3 no layout fits, 4 a part did not answer.
"""

from __future__ import annotations

import sys

import typer

from cli import (
    calibrate,
    chat,
    check,
    compare,
    dashboards,
    down,
    export,
    jobs,
    key,
    plan,
    replan,
    replay,
    search,
    setup,
    simulate,
    status,
    up,
    validate,
)
from cli.console import fail
from cli.job_option import MayBeJob
from cluster.errors import ShardwiseError

app = typer.Typer(
    name="shardwise",
    help="Plan, serve and steer large language models on Ray clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.command("plan", help="Find the layout for a model, a cluster and an SLO.")(plan.command)
app.command(
    "search", cls=MayBeJob, help="Find the layout by learning, or by a method to compare with."
)(search.command)
app.command("compare", help="Compare a model on several clusters.")(compare.command)
app.command("simulate", cls=MayBeJob, help="Simulate plans under a trace of requests.")(
    simulate.command
)
app.command("check", help="Explain what is wrong with a plan.")(check.command)
app.command("export", help="Say a plan as vLLM, NIM, Triton or Ray configuration.")(export.command)
app.command("setup", help="Make the bundled model ready to be served.")(setup.command)
app.command("up", help="Serve a plan.")(up.command)
app.command("status", help="Show replicas, queue, tier, forecast, decisions.")(status.command)
app.command("chat", help="Talk to the running service.")(chat.command)
app.command("key", help="Make an API key.")(key.command)
app.command("down", help="Stop the service and all it started.")(down.command)
app.command("replan", help="Move the running service to another layout.")(replan.command)
app.command("replay", help="Run a decision log again and compare.")(replay.command)
app.add_typer(dashboards.app, name="dashboards")
app.command("validate", help="Compare predictions with measured runs.")(validate.command)
app.command("calibrate", cls=MayBeJob, help="Fit the cost model to measurements.")(
    calibrate.command
)
app.add_typer(jobs.app, name="jobs", help="Searches and others that run as jobs of a cluster.")


def main() -> None:
    """Entry point of the `shardwise` command."""
    try:
        app()
    except ShardwiseError as error:
        try:
            fail(error)
        except typer.Exit as leaving:
            sys.exit(leaving.exit_code)


if __name__ == "__main__":
    main()
