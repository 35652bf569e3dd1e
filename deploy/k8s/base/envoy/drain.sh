#!/usr/bin/env bash
# Drains one Envoy without cutting a stream: drain.sh ADMIN_PORT GRACE_SECONDS
# It runs as preStop, because SIGTERM ends Envoy and its streams within 1 ms. It needs only bash.
set -euo pipefail
admin_port=$1 grace_s=$2

ask() { # METHOD PATH
  exec 3<>"/dev/tcp/127.0.0.1/$admin_port"
  printf '%s %s HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

running() { # requests in flight on the front listener
  ask GET '/stats?filter=^http.front.downstream_rq_active$' | sed -n 's/^http.front.downstream_rq_active: \([0-9]*\).*/\1/p'
}

ask POST /healthcheck/fail >/dev/null            # unready, so that no new connection is sent here
ask POST '/drain_listeners?graceful' >/dev/null  # open connections are asked to close
for ((waited = 0; waited < grace_s; waited++)); do
  left=$(running)
  echo "draining: ${left:-0} requests left"
  [[ ${left:-0} -gt 0 ]] || exit 0
  sleep 1
done
echo "drain: grace of ${grace_s} s is over"
