"""What the ranks of a job have archived, by Daft on Ray: where the history has outgrown one machine.

    python examples/history_ray.py FOLDER TABLE "SELECT rank, count(n) AS rows FROM history GROUP BY rank ORDER BY rank"

FOLDER is an archive of all ranks (probing -t cluster archive --to FOLDER), or has an archive for each node. The table is read as it is:
its folders job=, node=, rank= and date= are columns. Prints CSV. Needs daft and ray; RAY_ADDRESS says which cluster (default: one on this
machine). `probing cluster query --archive FOLDER` gives the same rows, by DuckDB on one machine.
"""
import csv
import os
import sys
from functools import reduce
from pathlib import Path

import daft
import ray


def tables(folder, table):
    """The folders of the table: of one archive, or of each archive below the folder."""
    return [str(path) for path in sorted([*Path(folder).glob(table), *Path(folder).glob(f"*/{table}")]) if path.is_dir()]


def main(folder, table, sql):
    # On a cluster of its own: two CPUs, no dashboard, nothing printed.
    ray.init(address=os.environ.get("RAY_ADDRESS"), logging_level="error", log_to_driver=False,
             **({} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 2, "include_dashboard": False}))
    daft.set_runner_ray()
    parts = [daft.read_parquet(f"{path}/**/*.parquet", hive_partitioning=True) for path in tables(folder, table)]
    if not parts:
        sys.exit(f"{folder} has no table {table}")
    history = reduce(lambda one, other: one.union_all_by_name(other), parts)
    rows = daft.sql(sql, history=history).to_pylist()
    writer = csv.writer(sys.stdout)
    writer.writerow(rows[0] if rows else [])
    writer.writerows(row.values() for row in rows)
    ray.shutdown()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
