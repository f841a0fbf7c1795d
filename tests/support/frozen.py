"""What has been imported until now stays where it is, and no collection of garbage looks at it.

For the server of `support.forkserver` alone: a collection in a process that it forked would write to every page that
all of them share, which takes longer than most of these processes live.
"""

import gc

gc.freeze()
