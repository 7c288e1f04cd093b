"""The pipeline of the cell `pipelines`: Spark runs it, in a folder of its own."""

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
servers, source, target = (
    spark.conf.get(f"matrix.{name}") for name in ("servers", "source", "target")
)


def flights_of(stream):
    return (
        spark.readStream.format("jetstream")
        .options(servers=servers, stream=stream, partitions="2")
        .option("partitionSubject", f"{stream}.{{partition}}.>")
        .load()
    )


@dp.table
def flights():
    return flights_of(source).selectExpr("subject", "data", "sequence")


@dp.materialized_view
def by_subject():
    return spark.read.table("flights").groupBy("subject").count()


@dp.materialized_view
def last():
    read = spark.read.format("jetstream").options(servers=servers, stream=source)
    return read.option("multiLast", f"{source}.>").load().select("subject", "data")


dp.create_sink("copies", "jetstream", {"servers": servers})


@dp.append_flow(target="copies")
def copy():
    subject = f"replace(subject, '{source}.', '{target}.') AS subject"
    return flights_of(source).selectExpr(subject, "data")
