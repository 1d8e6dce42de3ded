"""What travels to the cluster with a job, and what does it do there first?

The package is this code, the inputs, and a script. On the head node Ray unpacks it, once for all
jobs with the same content; so the script gives each job a directory of its own, beside the job's
log and named like it, where results stay as long as the log does:

    session_…/logs/job-driver-ID.log
    session_…/logs/job-driver-ID/{outputs,checkpoint}/…
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.job_command import KEPT, JobCommand
from cluster.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cluster", "rl_search", "autoscaler", "serving", "dashboards", "cli")
SCRIPT = "shardwise.sh"
MOST_BYTES = 400 * 2**20  # Ray takes packages below 500 MiB

# Of the interpreters that may be Ray's: the one of here (a shared image, or one machine), then what
# the cluster's own shell finds.
_SCRIPT = """\
# Runs a command of Shardwise as a job of Ray, in a directory of the job's own.
here=$PWD
log=$(readlink /proc/$$/fd/1)
case $log in
    */job-driver-*.log) ;;
    *) echo "error: the output of this job is no log of Ray's: $log" >&2; exit 4 ;;
esac
own=${{log%.log}}
mkdir -p "$own" && cd "$own" && mkdir -p {directories} || exit 4
if [ -e "$here/inputs" ]; then ln -sfn "$here/inputs" inputs; fi
if [ -e "inputs/{kept}" ]; then cp inputs/{kept}/* {kept}/; fi
export PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}"
for python in {python} python python3; do
    "$python" -c 'import ray' 2>/dev/null || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \\
        && exec "$python" -m cli.job_entry "$@"
    echo "error: $("$python" --version) of this cluster is older than 3.11, which Shardwise" \\
        "needs. Fix: use a Ray image with Python 3.11 or newer." >&2
    exit 2
done
echo "error: no python of this cluster's head node has Ray. Fix: put the one that does first" \\
    "into the PATH of 'ray start'." >&2
exit 4
"""


def entrypoint(command: JobCommand) -> str:
    """The job's shell command."""
    return shlex.join(["sh", SCRIPT, command.name, *command.arguments])


def pack(command: JobCommand, checkpoint: Mapping[str, Path], folder: Path) -> None:
    """Lay all that travels into `folder`. Raises InputError for more than Ray takes."""
    inputs = {**command.inputs, **{f"inputs/{KEPT}/{name}": p for name, p in checkpoint.items()}}
    size = sum(path.stat().st_size for path in inputs.values())
    if size > MOST_BYTES:
        largest = max(inputs.values(), key=lambda path: path.stat().st_size)
        raise InputError(
            f"the files of this job are {size / 2**20:,.0f} MiB, most of it {largest}; a job takes "
            f"{MOST_BYTES / 2**20:.0f} MiB. Fix: put the file where the cluster sees it, and use "
            "`ray job submit -- shardwise …` with its path there."
        )
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, path in inputs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, folder / name)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error}).") from error
    (folder / SCRIPT).write_text(script(command), encoding="utf-8")


def script(command: JobCommand) -> str:
    """What the job runs first."""
    folders = [*(str(Path(name).parent) for name in command.outputs), KEPT]
    return _SCRIPT.format(
        directories=shlex.join(folders), kept=KEPT, python=shlex.quote(sys.executable)
    )
