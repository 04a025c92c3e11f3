#!/bin/sh
# Slurm's health program, run by slurmd as root from time to time. In slurm.conf: HealthCheckProgram=/etc/preflight/health.sh, HealthCheckInterval=300, HealthCheckNodeState=ANY,CYCLE
#
# Its exit code means nothing to Slurm, which ends it after 60 s: preflight drains by itself, and this script only sees to it that it ends before.
# slurmd sets no PATH: every program is named whole.

# --- what a site may have to change -----------------------------------------------------------------------------------
PREFLIGHT=/opt/preflight/bin/preflight
LOG=/var/log/preflight-health.log  # what preflight says beside the system's log; rotate it
LIMIT=50       # seconds until preflight is ended: [slurm] health_budget of preflight.toml and 4 more, below 60
TEXTFILE_DIR=  # node_exporter's folder for text files; empty: as preflight.toml says
# SLURM_CONF=/opt/slurm/etc/slurm.conf; export SLURM_CONF  # where slurm.conf is not where Slurm was built to look for it
TIMEOUT=/usr/bin/timeout
LOGGER=/usr/bin/logger
DATE=/bin/date
# ----------------------------------------------------------------------------------------------------------------------

[ -f "$LOG" ] || [ ! -e "$LOG" ] || LOG=/dev/null  # a pipe that nobody reads would hold us
(: >>"$LOG") 2>/dev/null || LOG=/dev/null
exec >>"$LOG" 2>&1
"$TIMEOUT" --foreground -k 2 "$LIMIT" "$PREFLIGHT" slurm health ${TEXTFILE_DIR:+--textfile-dir "$TEXTFILE_DIR"} </dev/null
code=$?
case $code in
    0 | 3 | 10 | 78) ;;  # preflight has told everything itself
    *)
        echo "$("$TIMEOUT" --foreground -k 1 2 "$DATE" '+[%Y-%m-%dT%H:%M:%S]') preflight: health program: broke with code $code; the node was not judged"
        "$TIMEOUT" --foreground -k 1 2 "$LOGGER" -t preflight -p daemon.warning -- \
            "health program: broke with code $code; the node was not judged" </dev/null >/dev/null 2>&1
        ;;
esac
exit 0
