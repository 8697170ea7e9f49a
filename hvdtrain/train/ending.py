"""How a rank ends that cannot go on."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import NoReturn

from hvdtrain.errors import ExitCode, HvdtrainError, InputError, TrainingError
from hvdtrain.topology.environ import World


def end_rank(error: BaseException, world: World | None = None) -> NoReturn:
    """Ends this process at once, its reason on stderr.

    A rank that ends by an exception in the usual way waits in MPI_Finalize for ranks that wait
    for it in a reduction. Ending without Finalize makes the launcher end the others.
    """
    if world and world.rank > 0 and isinstance(error, InputError | TrainingError):
        # Most such errors are met by all ranks: rank 0 tells it, and its end ends the others. A rank that
        # is alone with one tells it a moment later: nothing ends it before, as the others wait for it.
        time.sleep(1.0)
    if isinstance(error, HvdtrainError):
        code = int(error.exit_code)
        # The user's own code failed inside ours: its traceback says where.
        detail = str(getattr(error, "detail", "")).strip()
        sys.stderr.write(f"{detail}\n" if detail else "")
        sys.stderr.write(f"hvdtrain: error: {error}\n")
    elif isinstance(error, SystemExit):  # as the interpreter itself takes it
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        sys.stderr.write(f"{error.code}\n" if isinstance(error.code, str) else "")
    else:
        code = int(ExitCode.FAILED)
        traceback.print_exception(error, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
