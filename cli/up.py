"""`shardwise up`: serve a plan on this machine, or on a Ray cluster that is already there.

The service runs in a process of its own and outlives this command; `shardwise down` ends it.
Ctrl-C before it is ready ends everything that was started. Exit code 0: it serves. 2: bad input.
4: it did not come up, with the reason.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cli.address import is_job_interface
from cli.console import out
from cluster.errors import InputError, ShardwiseError, UnavailableError
from cluster.model.plan import Plan, load_plan
from cluster.ray_backend.inventory import local_cluster
from serving.instance import INSTANCE_VARIABLE, Instance, Progress
from serving.keys import load_keys
from serving.layout.succession import check_servable
from serving.settings.config import ServeConfig, load_serve_config
from serving.settings.steering_config import controller_params
from serving.sources import resolve_sources, with_sources

_POLL_S = 0.25
# What keeps a local cluster off every other interface: Ray's switch, whose name is older than this
# use of it, and the address over which engine processes talk.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "VLLM_HOST_IP": "127.0.0.1"}
_REPOSITORY = Path(__file__).resolve().parent.parent


def command(
    plan: Annotated[Path, typer.Argument(help="A plan file (`shardwise plan … --out`).")],
    config: Annotated[
        Path | None, typer.Option(help="Serving configuration (docs/operations.md).")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster to deploy on. Default: a local one is started."),
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="How long it may take.")] = 900.0,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay attached; Ctrl-C ends the service.")
    ] = False,
) -> None:
    """Serve the plan."""
    if is_job_interface(address):
        raise InputError(
            f"--address {address} is a dashboard, and a service is no job. Fix: pass the address "
            "of the Ray cluster itself, e.g. HEAD:6379, or `auto` on one of its nodes."
        )
    loaded = load_plan(plan)
    settings = load_serve_config(config)
    # Numbers that cannot work are said now, not in a minute.
    controller_params(loaded, settings.steering)
    if settings.access.keys_file is not None and address is None:
        load_keys(settings.access.keys_file)  # elsewhere it is on the gateways' nodes
    check_servable(loaded)
    sources = resolve_sources(loaded)
    resolved = with_sources(loaded, sources)
    given = config.read_text() if config else ""
    instance = Instance.default()
    console = out()
    running = _same_already_running(instance, resolved, config=given)
    if running is not None:
        console.print("already running, with this plan and configuration")
        _print_ready(running, console)
        return
    _check_no_other(instance)
    if address is None:
        _check_devices(loaded)
        _check_port(settings)
    if settings.open_to_all:
        console.print(
            f"warning: whoever reaches {settings.http.host}:{settings.http.port} may ask anything, "
            "since there is no access.keys_file (docs/security.md)",
            markup=False,
        )
    for pool in loaded.pools:
        bounds = pool.replicas
        console.print(
            f"{pool.name}: {pool.model.name} from {sources[pool.name]}, "
            f"{pool.layout.to_layout(replicas=bounds.initial).describe()}, "
            f"{bounds.minimum} to {bounds.maximum} replicas"
        )
    head = _start_head(instance, resolved, config=given, address=address)
    try:
        progress = _follow(instance, head, timeout_s=timeout_s, console=console)
    except KeyboardInterrupt:
        console.print("interrupted: stopping what was started")
        stop(instance, head.pid)
        raise typer.Exit(130) from None
    except ShardwiseError:
        stop(instance, head.pid)
        raise
    _print_ready(progress, console)
    if foreground:
        _stay(instance, head, console=console)


def stop(instance: Instance, pid: int | None, *, patience_s: float = 60.0) -> int:
    """End the instance: its head first, then whatever is left. Returns processes swept."""
    import contextlib
    import signal

    import psutil

    if pid is not None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(timeout=patience_s)
    return instance.sweep(grace_s=5.0)


def _check_devices(plan: Plan) -> None:
    """Whether this machine has what the plan's first replicas need, before Ray is started."""
    devices = local_cluster().groups[0]
    if devices.device.kind != plan.cluster.device_kind:
        raise InputError(
            f"the plan is for {plan.cluster.devices} x {plan.cluster.device}, this machine has "
            f"{devices.devices} x {devices.device.name}. Fix: plan with `--cluster local`, or "
            "deploy on a cluster with such devices with --address."
        )
    main = plan.main
    needed = main.layout.to_layout(replicas=main.replicas.initial).devices
    if needed > devices.devices:
        raise InputError(
            f"pool '{main.name}' needs {needed} x {plan.cluster.device} to start "
            f"({main.layout.to_layout(replicas=main.replicas.initial).describe()}), this machine "
            f"has {devices.devices}. Fix: plan with `--cluster local`, or pass --address."
        )


def _same_already_running(instance: Instance, plan: Plan, *, config: str) -> Progress | None:
    """The progress of a ready instance that serves this very plan under this configuration."""
    progress = instance.progress()
    if instance.head() is None or progress is None or progress.phase != "ready":
        return None
    same = load_plan(instance.plan_path) == plan and instance.config_path.read_text() == config
    return progress if same else None


def _check_no_other(instance: Instance) -> None:
    if instance.head() is not None:
        raise InputError(
            "another plan or configuration is already being served (state in "
            f"{instance.directory}). Fix: `shardwise down` first, or set SHARDWISE_HOME to run "
            "another beside it."
        )
    instance.sweep(grace_s=2.0)  # left by a head that was killed


def _check_port(settings: ServeConfig) -> None:
    http = settings.http
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((http.host, http.port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {http.host}:{http.port}: {error.strerror}. Fix: free the port, "
                "or set http.port in a file given with --config."
            ) from error


def _start_head(
    instance: Instance, plan: Plan, *, config: str, address: str | None
) -> subprocess.Popen[bytes]:
    instance.directory.mkdir(parents=True, exist_ok=True)
    instance.plan_path.write_text(plan.dumps())
    instance.config_path.write_text(config)
    instance.write(Progress(phase="starting", doing="starting the head process"))
    arguments = [sys.executable, "-m", "serving.head", str(instance.directory)]
    if address is not None:
        arguments += ["--address", address]
    with instance.output_path.open("wb") as output:
        head = subprocess.Popen(
            arguments,
            env=_environment(instance, address=address),
            cwd=instance.directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on, not its
        )
    instance.write_pid(head.pid)  # at once: a second `up` must see it
    return head


def _environment(instance: Instance, *, address: str | None) -> dict[str, str]:
    """What every process of the instance inherits."""
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        INSTANCE_VARIABLE: instance.mark,
        "PYTHONPATH": os.pathsep.join(paths),
        # Nobody is told what runs here.
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    } | (_LOOPBACK if address is None else {})


def _follow(
    instance: Instance, head: subprocess.Popen[bytes], *, timeout_s: float, console: Console
) -> Progress:
    """Show progress until the instance is ready. Raises UnavailableError."""
    started_s = time.monotonic()
    told = ""
    with console.status("starting") as status:
        while True:
            progress = instance.progress()
            spent_s = time.monotonic() - started_s
            if progress is not None:
                status.update(f"[{spent_s:4.0f} s] {progress.doing}")
                if progress.doing != told and not console.is_terminal:
                    console.print(f"[{spent_s:4.0f} s] {progress.doing}", markup=False)
                told = progress.doing
                if progress.phase == "ready":
                    return progress
                if progress.phase == "failed":
                    raise _failure(progress)
            if head.poll() is not None:
                raise UnavailableError(
                    f"the head process ended with code {head.returncode}; its output is in "
                    f"{instance.output_path}."
                )
            if spent_s > timeout_s:
                raise UnavailableError(
                    f"not ready after {timeout_s:.0f} s, last: {told}. Fix: look at "
                    f"{instance.output_path}, or raise --timeout-s."
                )
            time.sleep(_POLL_S)


def _failure(progress: Progress) -> ShardwiseError:
    """The head's own error, with its exit code."""
    kind = InputError if progress.exit_code == InputError.exit_code else UnavailableError
    return kind(progress.doing)


def _print_ready(progress: Progress, console: Console) -> None:
    console.print(f"serving {', '.join(progress.models)}")
    console.print(f"  endpoint   {progress.endpoint}")
    console.print(f"  dashboard  http://{progress.dashboard}")
    console.print("  `shardwise chat`, `shardwise status`, `shardwise down`")


def _stay(instance: Instance, head: subprocess.Popen[bytes], *, console: Console) -> None:
    try:
        head.wait()
    except KeyboardInterrupt:
        console.print("stopping")
        stop(instance, head.pid)
        return
    raise UnavailableError(
        f"the service ended with code {head.returncode}; its output is in {instance.output_path}."
    )
