"""Writes metrics.md, the table of all metrics, from the catalogue in preflight/metrics.py: python deploy/prometheus/build_metrics.py"""

from pathlib import Path

from preflight.metrics import CATALOGUE, MAX_BYTES, MAX_SERIES, MORE_LABELS, PREFIX, RATIO_BUCKETS

PAGE = Path(__file__).parent / "metrics.md"
PATHS = {
    "agent": "`GET /metrics` of the resident agent of a node, port 9947 (deploy/systemd)",
    "run": "`preflight.prom` in the `--out` folder of `preflight run` and `simulate`; `--metrics FILE` of `preflight node` and `judge`; of these the figures that are the cluster's as a whole also by `preflight push`",
    "prolog": "text files of `preflight slurm prolog`, `prolog-slurmctld` and `health`, in node_exporter's folder ([slurm] textfile_dir)",
    "scan": "the text file of `preflight scan`, `preflight-scan-fleet.prom`",
    "exporter": "`GET /metrics` of `preflight exporter`, port 9948, from the history",
}
HEAD = """# All metrics

Made from `preflight/metrics.py` by `build_metrics.py`; a test says when it is out of date.

Bandwidths are bus bandwidths in bytes per second (decimal), times are Unix time in seconds, ratios are 1 where all is as expected. What is not known, or not there, has no series: absent is never 0. No label carries a job or a run id.

A pair's *reference* is what healthy pairs over the same class of routes gave in the same run. A run that was too noisy to judge has none, and then there are no ratios. A node's ratio is the one with the partner node that it does
best with, since a fast pair clears both its nodes; it takes two partner nodes or more.
"""

FILES = """## Text files

Each command on each node has a file of its own, `preflight-COMMAND-NODE.prom`, mode 0644, replaced in one step: a writer that breaks or is killed leaves the file that was there. All but the prolog's are on the disk before they
count; a prolog, for which a job waits, leaves that to the kernel. Links are not followed. Files by our names and of the same user that nobody has written for 30 days (a node or a command that is no more) are removed by
the next writer in the folder; another's files never. The time of the last success is kept from file to file while runs fail.

Do not point two `--metrics` or `--out` of the *same* command at one folder of node_exporter: their series would be the same, and node_exporter then shows neither rightly. Different commands may share a folder.
"""


def page() -> str:
    """The text of metrics.md."""
    lines = [HEAD, "## Who writes them\n", "| path | where | labels beside a metric's own |", "|---|---|---|"]
    lines += [f"| {path} | {text} | {_more(path)} |" for path, text in PATHS.items()]
    lines.append(
        '\nSeries of a modelled cluster (`preflight simulate`) carry `simulated="true"` as well; real ones lack that label.'
        f" A page or file has at most {MAX_SERIES:,} series and {MAX_BYTES // 1000} kB: metrics that don't fit are left out whole, the least telling first, and `{PREFIX}families_withheld` counts them."
        " `node` stands in `run` files of one node alone (`preflight node`).\n"
    )
    lines.append(FILES)
    lines += ["## The metrics\n", "| metric | type | labels | paths | meaning |", "|---|---|---|---|---|"]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(
            f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {', '.join(metric.paths)} | {metric.text} |"
        )
    bounds = ", ".join(map(str, RATIO_BUCKETS))
    lines.append(f"\nBuckets of `{PREFIX}pair_bandwidth_ratio`: {bounds}, +Inf.\n")
    return "\n".join(lines)


def _more(path: str) -> str:
    return ", ".join(f"`{label}`" for label in MORE_LABELS[path]) or "-"


if __name__ == "__main__":
    PAGE.write_text(page())
