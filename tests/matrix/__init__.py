"""
The deployments and versions that are run: each cell installs the wheel into an environment of its
own and runs the same short program there.

    JAVA_HOMES=/path/to/jdk21:/path/to/jdk25 make matrix ARGS="-k connect"

Interpreters come from `PATH` (`python3.12`), JDKs from `$JAVA_HOMES`, `$JAVA_HOME` and `PATH`; what
has none is skipped. `$MATRIX_FOLDER` keeps the environments for the next run.
"""
