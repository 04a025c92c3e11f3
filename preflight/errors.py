"""The few exceptions that we raise on purpose, each with the exit code it ends a command with.

    PreflightError
      UsageError        64  the command line asks for something that makes no sense
      ConfigError       78  a file that a person wrote is wrong
      PlacementError    10  a job's ranks sit where its plan must not have them: raised inside the job
      WorldError         3  something outside us is broken, so nothing could be decided
        DiscoveryError      a node, or a device of it, could not be read
        ProbeError          workers or collectives could not be started
        SlurmError          a command of Slurm failed, gave no answer in time, or answered nonsense
        MungeError          munge makes or reads no credential on this machine
        TransportError      an agent could not be reached, or refused, or answered nonsense
          AgentBusy         an agent works for another run
          AgentRefused      an agent has another key, or is another node
          NoAnswer          an agent did not answer in time, or not at all
            AnswerLate        it did not, and yet it is there

Our own mistakes are assertions, never one of these.
"""

from typing import ClassVar


class PreflightError(Exception):
    """An expected failure: printed as one message, without a traceback."""

    exit_code: ClassVar[int] = 3


class UsageError(PreflightError):
    """The command line is wrong: says which option, and what would be right."""

    exit_code = 64


class ConfigError(PreflightError):
    """A plan, configuration or saved file is wrong: names the file, the key, the value and what was expected."""

    exit_code = 78

    def __init__(self, source: str, problem: str, *, key: str | None = None, remedy: str | None = None) -> None:
        self.source = source
        self.key = key
        self.problem = problem
        self.remedy = remedy
        where = f"{source}: {key}" if key else source
        super().__init__(f"{where}: {problem}" + (f"\n  {remedy}" if remedy else ""))


class PlacementError(PreflightError):
    """The ranks of a job are not placed as its plan needs them, or nothing could be found out: the same text on every rank."""

    exit_code = 10


class WorldError(PreflightError):
    """Something outside this program is broken or missing: nothing could be decided."""


class DiscoveryError(WorldError):
    """A node or one of its devices could not be read."""


class ProbeError(WorldError):
    """Workers or collectives could not be started."""


class MungeError(WorldError):
    """munge makes or reads no credential on this machine: it is missing, its daemon is down or hangs."""


class SlurmError(WorldError):
    """A command of Slurm can't be found, failed, gave no answer in time, or answered with something that can't be read: says which command, and what it said."""


class TransportError(WorldError):
    """An agent could not be reached in time, refused, or answered with something that is not an answer."""


class AgentBusy(TransportError):  # noqa: N818 - a state of the agent
    """An agent works for another run: no fault of its node."""


class AgentRefused(TransportError):  # noqa: N818 - an answer of the agent
    """An agent doesn't take our signature: no fault of its node."""


class NoAnswer(TransportError):  # noqa: N818 - a state of the agent
    """An agent can't be reached, or gave no answer in time."""


class AnswerLate(NoAnswer):
    """An answer did not come in time, and yet the agent is there: the wait may have been ours (a coordinator that was stopped)."""
