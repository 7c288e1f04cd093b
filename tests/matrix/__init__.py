"""
The deployments and versions that are run: each cell installs the wheel into an environment of its
own and runs the same short program there.

    make matrix ARGS="--java /path/to/jdk21 --only connect"

Interpreters come from `PATH` (`python3.12`) or `--python`, JDKs from `java` on `PATH` or `--java`;
nothing but Python packages is installed. What has no interpreter or JDK is not run, and the table
says so.
"""
