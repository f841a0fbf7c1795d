"""`python -m hpcrl COMMAND …`, where the script `hpcrl` is not on the path."""

import sys

from hpcrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
