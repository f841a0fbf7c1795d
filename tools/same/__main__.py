"""`make same BASE=<commit>`: run a worktree of BASE and this tree, and print what differs."""

import sys

from same.session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
