#!/bin/sh
# Stands in for bin/java in front of a Java runtime that lacks the module jdk.incubator.vector.
#
# Spark's launcher demands that module with a flag that no setting removes, and such a runtime then
# refuses to start. Spark needs the module only to be faster, so the flag is dropped; every other
# argument passes unchanged. The runtime is found through the link `real` beside this file's folder.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "${0%/*}/../real/bin/java" "$@"
