"""Tells Horovod Elastic which hosts there are, as a file: ``python -I -S discover.py ...``.

Nothing has to be on its path. Horovod calls it every second. It prints ``HOST:SLOTS`` lines; with any other
exit code than 0, as while somebody writes a hostfile, the hosts stay as they were.

    discover.py list a:2,b:2            these hosts, always
    discover.py hostfile FILE [SLOTS]   what the file holds now, at most so many slots of each host
    discover.py slurm a:2,b:2           those of these hosts that Slurm does not call down
"""

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

if __name__ == "__main__":
    sys.path.append(os.path.dirname(_PACKAGE))
    from hvdtrain.launch.discovery import main

    sys.exit(main(sys.argv[1:]))
