#!/bin/bash
# Runs a command that can make no namespaces: in one that allows no more, where this system has them.
unshare -Ur true 2>/dev/null || exec "$@"
exec unshare -Ur bash -c 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"' bash "$@"
