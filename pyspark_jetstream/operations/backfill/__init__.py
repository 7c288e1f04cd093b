"""
Backfills that survive a kill: the parts of `backfill range`, `backfill snapshot` and `replay`.

A *source* (`ranges`, `snapshots`) plans its chunks once and reads each of them as often as asked,
the same rows every time. A *target* (`parquet`, `relay`) takes a chunk over as a whole. Between
them `copying` goes from chunk to chunk, and the `journal` on `storage` keeps what is planned and
what is done.
"""
