"""`preflight push`: a run's verdict to a Pushgateway."""

from pathlib import Path

import click


@click.command(name="push")
@click.argument("report", required=False)
@click.argument("url", required=False)
@click.option("--cluster", required=True, help="Which cluster it is of; part of the grouping key.")
@click.option("--kind", help="What kind of run; part of the grouping key. Default: the report's command.")
@click.option(
    "--credentials", type=click.Path(path_type=Path), metavar="FILE", help="user:password or a token, mode 0600."
)
@click.option("--timeout", default="20s", show_default=True, help="For all of it.")
@click.option("--delete", "remove", is_flag=True, help="Remove what was pushed instead; give URL alone, and --kind.")
def command(
    *,
    report: str | None,
    url: str | None,
    cluster: str,
    kind: str | None,
    credentials: Path | None,
    timeout: str,
    remove: bool,
) -> int:
    """Push the metrics of REPORT (a report.json) to the Pushgateway at URL, in the place of what was pushed there before for this cluster and kind.

    For a cluster's verdict where nothing can be scraped; metrics of single nodes belong into text files. A Pushgateway never forgets: --delete removes the group. Prometheus needs honor_labels.
    """
    from preflight.errors import UsageError
    from preflight.fleet.push import delete, group_url, push, read_credentials
    from preflight.model.units import parse_seconds

    try:
        deadline_s = parse_seconds(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout {error}") from error
    if not 0 < deadline_s <= 600:
        raise UsageError(f"--timeout {timeout}: give more than 0 and at most 600 s")
    authorization = read_credentials(credentials) if credentials else None
    if remove:
        if report is None or url is not None or kind is None:
            raise UsageError("--delete: give the URL and --kind, and no report")
        delete(group_url(report, cluster, kind), deadline_s=deadline_s, authorization=authorization)
        return 0
    if report is None or url is None:
        raise UsageError("give a report.json and the URL of a Pushgateway")
    from preflight.report.prometheus import verdict_text
    from preflight.report.runs import load_run

    loaded = load_run(Path(report))
    target = group_url(url, cluster, kind or loaded.command)
    push(target, verdict_text(loaded).encode(), deadline_s=deadline_s, authorization=authorization)
    return 0
