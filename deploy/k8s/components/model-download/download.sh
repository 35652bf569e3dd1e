#!/bin/sh
# Downloads a model once: download.sh FOLDER COMMAND
# COMMAND runs in an empty folder beside FOLDER, which becomes FOLDER if the command succeeds, so that FOLDER is complete
# if it exists. Pods that share the volume take turns: one downloads, the others wait. A download is taken over if its pod
# has not touched the lock for 5 minutes.
set -eu
folder=$1 command=$2
lock=$folder.lock part=$folder.part.${HOSTNAME:-$$}

stop() {
  [ -z "${toucher:-}" ] || kill "$toucher" 2>/dev/null || :
  rm -rf "$part" "$lock"
}

while [ ! -d "$folder" ]; do
  if mkdir "$lock" 2>/dev/null; then
    trap stop EXIT
    trap 'exit 1' INT TERM
    if [ -d "$folder" ]; then break; fi # another pod finished it meanwhile
    echo "downloading $folder"
    (while sleep 20; do touch "$lock"; done) >/dev/null 2>&1 &
    toucher=$!
    rm -rf "$folder".part.*
    mkdir "$part"
    (cd "$part" && sh -euc "$command")
    mv -T "$part" "$folder"
  else
    echo "waiting for another pod to download $folder"
    find "$lock" -prune -mmin +5 -exec rmdir {} \; 2>/dev/null || :
    sleep "${MODEL_POLL_S:-5}"
  fi
done
echo "$folder is complete"
