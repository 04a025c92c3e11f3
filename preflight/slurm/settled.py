"""How a program of a node ends, whatever happens inside it: with an exit code, and with a line that tells what kept it from deciding. Imports nothing that may be missing."""

from collections.abc import Callable

from preflight.errors import ConfigError, PreflightError
from preflight.slurm.limits import EndedError, TimeIsUpError, limited
from preflight.slurm.telling import Telling, lenient_textfile_dir

SET_UP_S = 8.0  # until the configuration is read
GO, UNDECIDED, NO_GO, BAD_CONFIG = 0, 3, 10, 78


def settled(telling: Telling, config: str | None, work: Callable[[], int]) -> int:
    """What the work gives; 3 or 78 where nothing was decided, which is told. Never raises an Exception. `config`: where the site's file may say where metrics go."""
    try:
        with limited(SET_UP_S):
            return work()
    except TimeIsUpError:
        telling.fault("its time was over")
    except (EndedError, KeyboardInterrupt) as error:
        telling.fault(f"it was ended ({error})")
    except ConfigError as error:
        telling.textfile_dir = telling.textfile_dir or lenient_textfile_dir(config)
        telling.fault(str(error))
        return BAD_CONFIG
    except PreflightError as error:
        telling.fault(str(error))
    except Exception as error:  # noqa: BLE001 - a broken installation judges no node, and lets the job start
        telling.fault(f"{type(error).__name__}: {error}")
    return UNDECIDED
