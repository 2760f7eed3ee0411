"""What the ranks of a job have archived, in Spark: where the history has outgrown one machine.

    python examples/history_spark.py FOLDER TABLE "SELECT rank, count(*) FROM history GROUP BY rank ORDER BY rank"

FOLDER is an archive of all ranks (probing -t cluster archive --to FOLDER), or has an archive for each node. The table is read as it is:
its folders job=, node=, rank= and date= are columns, and a filter on them opens no file of the others. Prints CSV. Needs pyspark; SPARK_MASTER
says where it runs (default: this machine). `probing cluster query --archive FOLDER` gives the same rows, by DuckDB on one machine.
"""
import csv
import os
import sys
from functools import reduce
from pathlib import Path

from pyspark.sql import SparkSession


def tables(folder, table):
    """The folders of the table: of one archive, or of each archive below the folder."""
    return [str(path) for path in sorted([*Path(folder).glob(table), *Path(folder).glob(f"*/{table}")]) if path.is_dir()]


def main(folder, table, sql):
    session = (SparkSession.builder.master(os.environ.get("SPARK_MASTER", "local[*]")).appName("probing history")
               .config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false").getOrCreate())
    session.sparkContext.setLogLevel("ERROR")
    parts = [session.read.option("mergeSchema", "true").parquet(path) for path in tables(folder, table)]
    if not parts:
        sys.exit(f"{folder} has no table {table}")
    # Archives of different releases may have columns that others lack.
    reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts).createOrReplaceTempView("history")
    rows = session.sql(sql)
    writer = csv.writer(sys.stdout)
    writer.writerow(rows.columns)
    writer.writerows(rows.collect())
    session.stop()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
