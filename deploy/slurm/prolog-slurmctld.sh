#!/bin/sh
# Slurm's controller prolog, run by slurmctld as SlurmUser before every job. In slurm.conf: PrologSlurmctld=/etc/preflight/prolog-slurmctld.sh
#
# Any exit code but 0 makes Slurm put a batch job back into the queue, and end one of srun or salloc. So exactly one code of preflight gets through: 10, "I have drained a node of this job". Everything else that can
# happen (a crash, a missing program, a time-out, a full disk, a kill) is a line in the log, and the job starts.
#
# slurmctld kills this script when it stops, and runs it again for the same job when it starts: preflight knows what it has decided.
#
# slurmctld sets no PATH and no SLURM_CONF: every program is named whole.

# --- what a site may have to change -----------------------------------------------------------------------------------
PREFLIGHT=/opt/preflight/bin/preflight
LOG=/var/log/slurm/preflight-prolog-slurmctld.log  # what preflight says beside the system's log; SlurmUser's; rotate it
LIMIT=390  # seconds until preflight is ended: [slurm] controller_budget of preflight.toml and 90 more; below PrologEpilogTimeout
# SLURM_CONF=/opt/slurm/etc/slurm.conf; export SLURM_CONF  # where slurm.conf is not where Slurm was built to look for it
TIMEOUT=/usr/bin/timeout
LOGGER=/usr/bin/logger
DATE=/bin/date
# ----------------------------------------------------------------------------------------------------------------------

case ${SLURM_JOB_ID:-} in
    '' | *[!0-9]*) job=unknown ;;
    *) job=$SLURM_JOB_ID ;;
esac
[ -f "$LOG" ] || [ ! -e "$LOG" ] || LOG=/dev/null  # a pipe that nobody reads would hold us
(: >>"$LOG") 2>/dev/null || LOG=/dev/null
exec </dev/null >>"$LOG" 2>&1  # nothing that we start holds a pipe of slurmctld's

say() {  # one line for the operator; neither a missing nor a hanging logger matters
    echo "$("$TIMEOUT" --foreground -k 1 2 "$DATE" '+[%Y-%m-%dT%H:%M:%S]') preflight: controller prolog of job $job: $1"
    "$TIMEOUT" --foreground -k 1 2 "$LOGGER" -t preflight -p daemon.warning -- "controller prolog of job $job: $1"
}

umask 022
# in the foreground: slurmctld starts its scripts with SIGCHLD blocked, for which a shell that waits for a child in the background waits for ever
# --foreground: preflight stays in the process group that slurmctld ends when it ends this script
"$TIMEOUT" --foreground -k 10 "$LIMIT" "$PREFLIGHT" slurm prolog-slurmctld
code=$?

case $code in
    10) exit 10 ;;
    0) ;;  # preflight has told everything itself
    124 | 137) say "ended after $LIMIT s (code $code); nothing was decided, the job starts" ;;
    126 | 127) say "$PREFLIGHT or $TIMEOUT can't be run (code $code): is it installed here? Nothing was decided, the job starts" ;;
    *) say "broke with code $code, see $LOG; nothing was decided, the job starts" ;;
esac
exit 0
