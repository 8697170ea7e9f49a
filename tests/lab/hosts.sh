# shellcheck shell=bash
# Hosts, their addresses and the bridge between them; sourced by `lab`.

BRIDGE=brlab
CARD=lab # the machine's end of a host's cable is labh1, labh2, ...

# hosts: the compute hosts' names, one a line.
hosts() {
  seq -f 'h%g' "$(< "$LAB/size")"
}

# address HOST
address() {
  if [[ $1 == head ]]; then echo "$LAB_NET.254"; else echo "$LAB_NET.${1#h}"; fi
}

# init_of HOST: prints the pid, as the machine sees it, of the host's process 1.
init_of() {
  recorded "$LAB/host.$1.pid" || die "no such host, or it is off: $1"
}

# entry_to HOST: sets ENTRY, the words before a command that put it into the host's namespaces.
entry_to() {
  local init
  init=$(init_of "$1") || exit 1
  ENTRY=(nsenter --target "$init" --net --uts --ipc --mount --pid --
    env --chdir="$PWD" HOME="$LAB/home" TMPDIR="$LAB/tmp")
}

# inhost HOST COMMAND...: runs COMMAND in the host, in the same folder.
inhost() {
  entry_to "$1"
  "${ENTRY[@]}" "${@:2}"
}

# need PROGRAM...: one line on those that are missing and exit 2.
need() {
  local missing=() program
  for program in "$@"; do
    command -v "$program" > /dev/null || missing+=("$program")
  done
  ((${#missing[@]} == 0)) || refuse "missing: ${missing[*]}; run tests/lab/install"
}

# check_machine: one line on what is missing and exit 2, before anything is made.
check_machine() {
  need ip tc unshare nsenter setsid flock ssh ssh-keygen sshd
  unshare --net --uts --ipc --mount --pid --fork ip link add probe type bridge 2> /dev/null ||
    refuse "this machine does not let root make namespaces and bridges (a container without privileges?)"
}

# claim_machine: makes the bridge. There is one lab per machine, and the bridge says whose it is: its
# alias is the state folder, that of each cable the "PID START" of its host. So what a killed
# lab left can be told from a lab that is in use, even where its state folder is gone.
claim_machine() {
  (
    flock -w 60 9 || die "another lab is starting"
    if [[ -e /sys/class/net/$BRIDGE ]]; then
      owner=$(< "/sys/class/net/$BRIDGE/ifalias")
      if [[ $owner != "$LAB" ]] && is_alive "$owner"; then
        die "a lab is up in $owner, and a machine holds one; take it down with: LAB=$owner tests/lab/lab down"
      fi
      remove_cables
    fi
    ip link add "$BRIDGE" type bridge forward_delay 0 || die "cannot make the bridge $BRIDGE"
    ip link set "$BRIDGE" alias "$LAB" up || die "cannot bring up the bridge $BRIDGE"
  ) 9< /sys/class/net # a lock that leaves no file behind
}

# is_alive FOLDER: whether any process that a lab's state folder records is alive.
is_alive() {
  local file
  for file in "$1"/*.pid; do
    recorded "$file" > /dev/null && return 0
  done
  return 1
}

# remove_cables: ends the hosts at the cables' other ends, removes the cables and the bridge.
remove_cables() {
  local link
  for link in /sys/class/net/"$CARD"h*; do
    [[ -e $link ]] || continue
    end_process "$link/ifalias" 0
    ip link delete "${link##*/}" 2> /dev/null || true
  done
  ip link delete "$BRIDGE" 2> /dev/null || true
}

# write_host_files: what all hosts have in common.
write_host_files() {
  local host
  rm -rf "$LAB/log"
  mkdir "$LAB/log" "$LAB/etc" "$LAB/home" "$LAB/tmp"
  mkdir -m 700 "$LAB/ssh"
  ssh-keygen -q -t ed25519 -N '' -C lab -f "$LAB/ssh/user"
  ssh-keygen -q -t ed25519 -N '' -C lab -f "$LAB/ssh/host"
  cp "$LAB/ssh/user.pub" "$LAB/ssh/authorized_keys"
  {
    echo "127.0.0.1 localhost"
    # the full name last: Open MPI asks for the first name of an address
    for host in head $(hosts); do echo "$(address "$host") $host $host.lab.test"; done
  } > "$LAB/etc/hosts"
  for host in head $(hosts); do
    echo "$host,$host.lab.test,$(address "$host") $(cut -d' ' -f1,2 "$LAB/ssh/host.pub")"
  done > "$LAB/ssh/known_hosts"
  fill ssh_config > "$LAB/etc/ssh_config"
  fill sshd_config > "$LAB/etc/sshd_config"
  # Names are looked up in /etc/hosts only: libraries ask for the names of peers' addresses, and a
  # resolver that cannot be reached costs them ten seconds each.
  { grep -v '^hosts:' /etc/nsswitch.conf || true; echo "hosts: files"; } > "$LAB/etc/nsswitch.conf"
  # A home of its own: what stands in root's .bashrc or .ssh/config would make hosts differ from
  # machine to machine. And no locked account, which sshd refuses: root's is on some distributions.
  {
    echo "root:x:0:0:root:$LAB/home:/bin/bash"
    grep -v '^root:' /etc/passwd || true
  } > "$LAB/etc/passwd"
  (umask 077 && echo 'root:*:::::::' > "$LAB/etc/shadow")
}

# fill NAME: prints templates/NAME with each @VARIABLE@ replaced by its value.
fill() {
  local text name
  text=$(< "$HERE/templates/$1")
  local LAST_GPU=$((LAB_GPUS - 1))
  for name in LAB LAB_NET LAB_HOSTS LAB_CPUS LAB_GPUS LAST_GPU LAB_SLURMD_TIMEOUT LAB_CRED_EXPIRE PATH; do
    text=${text//"@$name@"/"${!name}"}
  done
  echo "$text"
}

# start_host HOST: makes its namespaces; `await_host` waits until it answers.
start_host() {
  local host=$1 outer file=$LAB/host.$1.pid
  setsid unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc \
    bash "$HERE/host-init" "$host" "$LAB" < /dev/null > "$LAB/log/host.$host.log" 2>&1 &
  outer=$!
  disown
  # until the host's own process 1 is known; it ends with this one (--kill-child)
  record "$file" "$outer" || true
  record "$file" "$(await_child "$outer")" || die "host $host did not start: $(< "$LAB/log/host.$host.log")"
}

# connect_host HOST: its network card.
connect_host() {
  local host=$1 init
  init=$(init_of "$host") || exit 1
  # that of a host that was killed goes by itself, but only some time later
  ip link delete "$CARD$host" 2> /dev/null || true
  # A fixed hardware address: peers still know it when the host was off and on again.
  ip link add "$CARD$host" type veth \
    peer name eth0 address "02:4c:41:42:00:$(printf %02x "$(address "$host" | cut -d. -f4)")" netns "$init"
  ip link set "$CARD$host" alias "$(< "$LAB/host.$host.pid")"
  ip link set "$CARD$host" master "$BRIDGE" up
  inhost "$host" ip link set eth0 up
  configure_card "$host"
}

# configure_card HOST: gives eth0 the host's address.
configure_card() {
  inhost "$1" ip address replace "$(address "$1")/24" dev eth0
  # leads nowhere; programs find their own address by asking for the route to a far one
  [[ $1 == head ]] || inhost "$1" ip route replace default via "$(address head)"
}

answers() {
  inhost "$1" bash -c "exec 3<> /dev/tcp/127.0.0.1/22" 2> /dev/null
}

await_host() {
  await 10 answers "$1" || die "no sshd on $1: $(tail -n 3 "$LAB/log/host.$1.log")"
}

# stop_host HOST: ends all its processes, and no others: they die with their namespace's process 1.
stop_host() {
  end_recorded "$LAB/host.$1.pid" 0
}

# processes_of HOST: "PID COMMAND" of each process that the lab did not start itself.
processes_of() {
  local init namespace pid own
  init=$(init_of "$1") || exit 1
  namespace=$(readlink "/proc/$init/ns/pid")
  own=" $(for file in "$LAB"/*.pid; do recorded "$file" || true; done | tr '\n' ' ')"
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    [[ $own != *" $pid "* && $(readlink "/proc/$pid/ns/pid" 2> /dev/null) == "$namespace" ]] || continue
    start_time "$pid" > /dev/null || continue
    echo "$pid $(tr '\0' ' ' 2> /dev/null < "/proc/$pid/cmdline")"
  done
}
