# The exit code of a process when it has really ended: a signal that is heard breaks `wait` off, so it has to say it twice.
ending_of() {
    local before code=
    while kill -0 "$1" 2> /dev/null; do wait "$1"; done
    until before=$code; wait "$1"; code=$?; [ "$code" = "$before" ]; do :; done
    return "$code"
}
@PROLOGUE@
# Whatever shell the prologue has asked for: from here on a line may fail, and a variable may be unset.
set +eu +o pipefail +o posix
trap - ERR
unset IFS
