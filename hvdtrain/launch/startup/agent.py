"""Starts a rank agent, as a file: ``python -I -S agent.py ...`` needs a third less time than ``-m``.

Without the site module nothing is installed as far as this interpreter knows, so the folder that holds the
package is told to it. It stands last: what is beside the package must not take the standard library's place.
"""

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

if __name__ == "__main__":
    sys.path.append(os.path.dirname(_PACKAGE))
    from hvdtrain.launch.rank_agent import main

    # Nothing is buffered or shared with threads: the interpreter's own clean-up would only cost time.
    os._exit(main(sys.argv[1:]))
