"""
Shows streams, partitions, consumers, pins, lag, claims, and a checkpoint beside what the server holds.

    python jobs/inspect.py --stream FLIGHTS
    python jobs/inspect.py --stream 'FLIGHTS-{partition}' --partitions 4 --watch
    python jobs/inspect.py --checkpoint /checkpoints/alerts --watch 10
    python jobs/inspect.py --stream FLIGHTS --consumer spark-6544945683 --json

Nothing is changed: it reads the checkpoint's files and asks the server. Without --consumer it shows
the consumers of the checkpoint's queries, else all that have a priority group. With --watch it looks
again every two seconds, or so many, and adds rates, until Ctrl-C.

Exit status 0: all well, or Ctrl-C; 1: failed, why in one line; 2: wrong arguments; 3: some problem,
it is shown.
Secrets: credentialsFile and nkeySeedFile, or $JETSTREAM_PASSWORD, $JETSTREAM_TOKEN,
$JETSTREAM_CREDENTIALS.
"""  # noqa: E501

# The program is in `overview`, for this file has the name of a module of the standard library, and
# Python looks into the directory of the program that runs first: whatever is run from here and
# imports `inspect` (dataclasses does, hence everything) gets this file. Then it becomes the
# library's module, in its own namespace: another object in `sys.modules` would be seen half made,
# or not at all, by a thread that imports it at the same time.

if __name__ == "inspect":

    def _become_the_librarys() -> None:
        import os
        from importlib.machinery import PathFinder

        # Not sys.path without this directory: another copy of it may be there.
        spec = PathFinder.find_spec("inspect", [os.path.dirname(os.__file__)])
        if spec is None or spec.loader is None:
            raise ImportError("the standard library has no module inspect")
        code = spec.loader.get_code("inspect")  # type: ignore[attr-defined]
        module = globals()
        for name in [each for each in module if not each.startswith("__")]:
            del module[name]
        module["__file__"], module["__cached__"] = spec.origin, spec.cached
        exec(code, module)
        # Last: by the one before, the import system knows that it is not ready.
        module["__spec__"], module["__loader__"] = spec, spec.loader

    _become_the_librarys()

elif __name__ == "__main__":
    import sys

    from pyspark_jetstream.operations.console.overview import main

    sys.exit(main(__doc__))
