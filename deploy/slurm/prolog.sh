#!/bin/sh
# Slurm's node prolog, run by slurmd as root on every node of a job. In slurm.conf: Prolog=/etc/preflight/prolog.sh
#
# Any exit code but 0 makes Slurm drain the node and hold the job. So exactly one code of preflight gets through: 10, "I have drained this node, and its reason says why". Everything else that can happen (a crash, a
# missing program, a time-out, a full disk, a kill) is a line in the log, and the job starts.
#
# slurmd sets no PATH: every program is named whole.

# --- what a site may have to change -----------------------------------------------------------------------------------
PREFLIGHT=/opt/preflight/bin/preflight
LOG=/var/log/preflight-prolog.log  # what preflight says beside the system's log; rotate it
LIMIT=12       # seconds until preflight is ended: [slurm] budget of preflight.toml and 4 more
GIVE_UP=18     # seconds until a preflight that can't be ended (it hangs in the kernel) is left behind; below PrologEpilogTimeout
TEXTFILE_DIR=  # node_exporter's folder for text files; empty: as preflight.toml says, but then a crash leaves no metric
TIMEOUT=/usr/bin/timeout
LOGGER=/usr/bin/logger
DATE=/bin/date
SLEEP=/bin/sleep
MV=/bin/mv
DD=/bin/dd
# ----------------------------------------------------------------------------------------------------------------------

case ${SLURMD_NODENAME:-} in
    '' | *[!A-Za-z0-9._-]*) node=unknown ;;
    *) node=$SLURMD_NODENAME ;;
esac
[ -f "$LOG" ] || [ ! -e "$LOG" ] || LOG=/dev/null  # a pipe that nobody reads would hold us
(: >>"$LOG") 2>/dev/null || LOG=/dev/null
exec >>"$LOG" 2>&1  # and not slurmd's pipe, which whatever is left behind would hold

say() {  # one line for the operator; neither a missing nor a hanging logger matters
    echo "$("$TIMEOUT" --foreground -k 1 2 "$DATE" '+[%Y-%m-%dT%H:%M:%S]') preflight: prolog on $node: $1"
    "$TIMEOUT" --foreground -k 1 2 "$LOGGER" -t preflight -p daemon.warning -- "prolog on $node: $1" </dev/null >/dev/null 2>&1
}

# what preflight could not say itself: the same series that it writes, in the same file. The folder may be the exporter's: nothing in it is followed (excl, T). It may hang: each program has a time limit.
unknown() {
    [ -n "$TEXTFILE_DIR" ] || return
    same="command=\"slurm prolog\",node=\"$node\""
    new="$TEXTFILE_DIR/.preflight-new.$$"
    {
        echo '# HELP preflight_run_answer 1 for the answer of the last run, 0 for the others.'
        echo '# TYPE preflight_run_answer gauge'
        echo "preflight_run_answer{answer=\"go\",$same} 0.0"
        echo "preflight_run_answer{answer=\"undecided\",$same} 1.0"
        echo "preflight_run_answer{answer=\"no-go\",$same} 0.0"
        echo '# HELP preflight_findings Findings of the last run by check and verdict.'
        echo '# TYPE preflight_findings gauge'
        echo "preflight_findings{check=\"slurm_prolog\",verdict=\"UNKNOWN\",$same} 1.0"
    } | "$TIMEOUT" --foreground -k 1 2 "$DD" conv=excl of="$new" &&
        "$TIMEOUT" --foreground -k 1 2 "$MV" -fT "$new" "$TEXTFILE_DIR/preflight-slurm-prolog-$node.prom" </dev/null
}

umask 022
late= stop=
trap 'late=yes' USR1

# --foreground: preflight stays in the process group that slurmd ends when it ends this script
"$TIMEOUT" --foreground -k 2 "$LIMIT" "$PREFLIGHT" slurm prolog ${TEXTFILE_DIR:+--textfile-dir "$TEXTFILE_DIR"} </dev/null &
work=$!
(
    trap 'stop=yes' TERM
    "$SLEEP" "$GIVE_UP" &
    trap 'kill -s KILL "$!"; exit 0' TERM  # KILL: a shell that has just forked may lose any other signal
    [ -z "$stop" ] || { kill -s KILL "$!"; exit 0; }
    wait "$!" && kill -s USR1 "$$"
) </dev/null >/dev/null 2>&1 &
watch=$!
trap 'kill "$work" "$watch" 2>/dev/null; exit 0' TERM INT HUP  # not before the forks, for the same reason

wait "$work"
code=$?
kill "$watch" 2>/dev/null

if [ -n "$late" ]; then
    unknown 2>/dev/null
    say "not ended after $GIVE_UP s: it hangs in the kernel and is left behind; the node was not judged, the job starts"
    exit 0
fi
case $code in
    10) exit 10 ;;
    0 | 3 | 78) ;;  # preflight has told everything itself
    124 | 137)
        unknown 2>/dev/null
        say "ended after $LIMIT s (code $code); the node was not judged, the job starts"
        ;;
    126 | 127)
        unknown 2>/dev/null
        say "$PREFLIGHT or $TIMEOUT can't be run (code $code): is it installed here? The node was not judged, the job starts"
        ;;
    *)
        unknown 2>/dev/null
        say "broke with code $code, see $LOG; the node was not judged, the job starts"
        ;;
esac
exit 0
