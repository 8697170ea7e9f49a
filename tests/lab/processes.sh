# shellcheck shell=bash
# Pid files, daemons and waiting; sourced by `lab`.
#
# A pid file holds "PID START", START being the process's start time in clock ticks since boot
# (proc(5), /proc/PID/stat, field 22). A process is taken for the one that was recorded only when
# both agree, so that a number that was given to a stranger since is never signalled.

# die MESSAGE: ends this program with one line.
die() {
  echo "lab: $*" >&2
  exit 1
}

# refuse MESSAGE: the same with the exit code for wrong input and for machines that cannot hold a lab.
refuse() {
  echo "lab: $*" >&2
  exit 2
}

# await SECONDS COMMAND...: repeats COMMAND until it succeeds; fails when that takes longer.
await() {
  local tries=$(($1 * 20))
  shift
  until "$@"; do
    ((tries-- > 0)) || return 1
    sleep 0.05
  done
}

# start_time PID: prints its start time; fails when it is gone or only waits to be reaped.
start_time() {
  local stat fields
  { stat=$(< "/proc/$1/stat"); } 2> /dev/null || return 1
  # the second field, the program's name in parentheses, may hold blanks and parentheses itself
  read -r -a fields <<< "${stat##*) }"
  [[ ${fields[0]:-X} != [ZX] ]] && echo "${fields[19]}"
}

# record FILE PID
record() {
  local start
  start=$(start_time "$2") || return 1
  echo "$2 $start" > "$1"
}

# recorded FILE: prints the pid of the very process that FILE names; fails when that is not alive.
recorded() {
  local pid start
  { read -r pid start < "$1"; } 2> /dev/null || return 1
  [[ -n $start && $(start_time "$pid") == "$start" ]] && echo "$pid"
}

is_gone() {
  ! recorded "$1" > /dev/null
}

# end_process FILE [SECONDS]: SIGTERM to the process that FILE names, SIGKILL after SECONDS (0: at once).
end_process() {
  local pid patience=${2:-3}
  if ((patience > 0)) && pid=$(recorded "$1"); then
    kill -TERM "$pid" 2> /dev/null || true
    await "$patience" is_gone "$1" || true
  fi
  if pid=$(recorded "$1"); then
    kill -KILL "$pid" 2> /dev/null || true
    await 5 is_gone "$1" || die "process $pid cannot be ended"
  fi
}

# end_recorded FILE [SECONDS]: the same, and removes FILE.
end_recorded() {
  end_process "$@"
  rm -f "$1"
}

# child_of PID: prints the first child of a process that forks once.
child_of() {
  local child
  # the line has no end, for which `read` fails
  { read -r child _ < "/proc/$1/task/$1/children"; } 2> /dev/null || [[ -n ${child:-} ]] && echo "$child"
}

# start_daemon NAME HOST COMMAND...: a process of HOST that goes on; LAB/NAME.pid, LAB/log/NAME.log.
start_daemon() {
  local name=$1 child ENTRY
  entry_to "$2"
  setsid "${ENTRY[@]}" "${@:3}" < /dev/null > "$LAB/log/$name.log" 2>&1 &
  disown
  # entering a pid namespace takes a fork: the daemon is the child of what was started here
  child=$(await_child $!) || die "$name did not start: $(tail -n 3 "$LAB/log/$name.log")"
  record "$LAB/$name.pid" "$child" || die "$name ended: $(tail -n 3 "$LAB/log/$name.log")"
}

# await_child PID: prints the child once it is there; fails when PID ends before.
await_child() {
  local tries=100
  until child_of "$1"; do
    start_time "$1" > /dev/null && ((tries-- > 0)) || return 1
    sleep 0.02
  done
}
