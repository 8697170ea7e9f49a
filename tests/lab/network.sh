# shellcheck shell=bash
# Cables: cut, slow, long; sourced by `lab`.
#
# A host's cable is a pair of network cards, labHOST on the bridge and eth0 in the host. Where the
# kernel has no netem, a delayed cable is a pair of taps, tap-HOST on the bridge and eth0 in the
# host, with the program delay.c between them; the undelayed one stays in the host as `spare`.

# bridge_end HOST: the card on the bridge that the host's traffic goes through now.
bridge_end() {
  if recorded "$LAB/delay.$1.pid" > /dev/null; then echo "tap-$1"; else echo "$CARD$1"; fi
}

cut_host() {
  ip link set "$(bridge_end "$1")" down
}

heal_host() {
  ip link set "$(bridge_end "$1")" up
}

# sent_bytes HOST: what the host has sent into the network since it was started.
sent_bytes() {
  cat "/sys/class/net/$(bridge_end "$1")/statistics/rx_bytes"
}

# set_rate HOST RATE|none: token bucket filters in both directions, RATE in tc's words (1gbit).
set_rate() {
  local host=$1 rate=$2 device
  device=$(bridge_end "$host")
  tc qdisc delete dev "$device" root 2> /dev/null || true
  inhost "$host" tc qdisc delete dev eth0 root 2> /dev/null || true
  [[ $rate == none ]] && return
  tc qdisc add dev "$device" root tbf rate "$rate" burst "${LAB_BURST:-256kb}" latency 50ms
  inhost "$host" tc qdisc add dev eth0 root tbf rate "$rate" burst "${LAB_BURST:-256kb}" latency 50ms
}

# set_delay HOST MICROSECONDS|none: on what the host sends.
set_delay() {
  local host=$1 delay_us=$2
  remove_delay "$host"
  [[ $delay_us == none ]] && return
  inhost "$host" tc qdisc add dev eth0 root netem delay "${delay_us}us" limit 20000 2> /dev/null && return
  insert_taps "$host" "$delay_us"
}

remove_delay() {
  local host=$1
  if recorded "$LAB/delay.$host.pid" > /dev/null; then
    end_recorded "$LAB/delay.$host.pid" # its taps go with it
    inhost "$host" ip link set spare down name eth0
    inhost "$host" ip link set eth0 up
    configure_card "$host"
  fi
  inhost "$host" tc qdisc delete dev eth0 root 2> /dev/null || true
}

insert_taps() {
  local host=$1 delay_us=$2 init hardware log="$LAB/log/delay.$1.log"
  [[ -c /dev/net/tun ]] || die "no delay here: the kernel has neither sch_netem nor /dev/net/tun"
  [[ -x $LAB/delay ]] || "${CC:-cc}" -O2 -o "$LAB/delay" "$HERE/delay.c" || die "cannot compile delay.c"
  init=$(init_of "$host") || exit 1
  setsid "$LAB/delay" "inner-$host" "tap-$host" "$delay_us" < /dev/null > "$log" 2>&1 &
  record "$LAB/delay.$host.pid" $! || die "delay: $(< "$log")"
  await 5 grep -q ready "$log" || die "delay: $(< "$log")"
  hardware=$(inhost "$host" cat /sys/class/net/eth0/address)
  ip link set "tap-$host" master "$BRIDGE" up
  ip link set "inner-$host" netns "$init"
  inhost "$host" ip link set eth0 down name spare
  inhost "$host" ip address flush dev spare
  inhost "$host" ip link set "inner-$host" name eth0 address "$hardware" txqueuelen 2000 up
  configure_card "$host"
}
