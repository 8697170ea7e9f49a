"""The step model: overlap by hand, against a discrete-event simulator, and what must hold for any job."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.scaling.collectives import Cost, Wire, ring
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.job import make_job
from hvdtrain.scaling.network import Level, Network
from hvdtrain.scaling.overlap import Buffer, Fusing, bucket, exposed, fused, send, walk
from hvdtrain.scaling.profile import ReadyGradient, parse_profile
from hvdtrain.scaling.step import CAUSES, reduction_s, step_at, step_time, uneven_share, waited_for_data
from tests.unit.scaling.profiles import profile_document, rank_times
from tests.unit.scaling.simulator import World


def job_of(**changed):
    return make_job(parse_profile(Fields(profile_document(**changed), "p.json")))


def network_of(alpha_s=10e-6, speed=1e9, gpus_per_node=1, inside=None):
    between = Level(Wire(alpha_s, 1 / speed), 0.1, "measured", is_measured=True)
    return Network(inside or between, between, gpus_per_node)


def seconds(num_bytes):
    return Cost(1.0, num_bytes / 10)


def test_buffers_are_sent_in_turn():
    # 20 B ready at 1: 1..4; 30 B at 2 waits until 4: 4..8; 10 B at 9: 9..11. Backward ends at 9.
    overlap = walk([Buffer(20, 1), Buffer(30, 2), Buffer(10, 9)], seconds, 9)
    assert overlap.end_s == 11
    assert (overlap.latency_s, overlap.transfer_s) == (3, 6)
    assert overlap.busy_before_s == 7
    assert exposed(overlap, 9) == 2
    assert exposed(walk([Buffer(20, 1)], seconds, 9), 9) == 0


def test_buckets_wait_for_their_last_gradient():
    gradients = [ReadyGradient(size, when) for size, when in ((10, 1), (10, 2), (25, 3), (5, 4))]
    assert bucket(gradients, 20) == [Buffer(20, 2, 2), Buffer(25, 3), Buffer(5, 4)]
    assert bucket([], 20) == []


def test_an_engine_takes_what_is_ready_when_it_is_free():
    # at 1: 10 B, 1..3; by 3 two more are ready: 30 B, 3..7; by 7 the last: 7..8.5
    gradients = [ReadyGradient(size, when) for size, when in ((10, 1), (20, 2), (10, 3), (5, 4))]
    overlap = send(gradients, seconds, Fusing(100), 4)
    assert (overlap.num_buffers, overlap.end_s) == (3, 8.5)
    # no buffer beyond 25 B: 10; 20 and 10, which are ready at one look, 3..6..8; then the last
    assert send(gradients, seconds, Fusing(25), 4).num_buffers == 4
    # looks half a cycle after the first is ready: 30 B, 2..6; a cycle is over by then: 15 B, 6..8.5
    assert send(gradients, seconds, Fusing(100, cycle_s=2.0), 4).end_s == 8.5
    # cycles of 6 s begin at 2 and 8: 30 B, 2..6; 15 B, 8..10.5
    assert send(gradients, seconds, Fusing(100, cycle_s=6.0), 4, phase=1 / 6).end_s == 10.5


def test_ranks_agree_before_each_reduction_and_while_nothing_is_ready():
    gradients = [ReadyGradient(10, 1), ReadyGradient(10, 7)]
    # agreements of 2 s: at 2 on the first, which is sent 4..6; at 6 on nothing; at 8 on the second, 10..12
    fusing = Fusing(100, cycle_s=0.5, negotiates=True, agree_s=2.0)
    assert send(gradients, seconds, fusing, 7).end_s == 12
    # what is over the limit in one cycle needs no other agreement: 3 buffers of 2 s, 4..10
    both = [ReadyGradient(10, 1)] * 3
    assert send(both, seconds, replace(fusing, limit_bytes=10), 1).end_s == 10


def test_fused_buffers_are_those_that_end_with_the_measured_reduction():
    # 8 B a second: at 1 the first, 1..2.25; then one of 20 B, ..4.75; then two of 15 B, which end at 6.625
    gradients = [ReadyGradient(size, when) for size, when in ((10, 1), (20, 2), (10, 3), (5, 4))]
    found = fused(gradients, Fusing(100), 4, exposed_s=2.625)
    assert [(one.bytes, one.num_tensors) for one in found] == [(10, 1), (20, 1), (15, 2)]
    # 1 B a second: the first, 1..11, and all the rest
    assert [one.bytes for one in fused(gradients, Fusing(100), 4, exposed_s=42.0)] == [10, 35]
    # nothing exposed: as fast as can be, each on its own
    assert len(fused(gradients, Fusing(100), 4, exposed_s=0.0)) == 4
    assert fused([], Fusing(100), 4, exposed_s=1.0) == []


def test_the_step_by_hand():
    # 100 MB at the end of backward, 4 ranks: 6 * 10 us + 1.5 * 0.1 s = 0.15006 s after 0.1 s of work
    job = job_of(num_gradients=1, backend="ddp")
    step = step_at(job, network_of(), 4)
    assert step.alone_s == pytest.approx(0.1)
    assert step.added_s["latency"] == pytest.approx(60e-6)
    assert step.added_s["bandwidth"] == pytest.approx(0.15)
    assert step.total_s == pytest.approx(0.25006)
    assert step.losses()["bandwidth"] == pytest.approx(0.15 / 0.25006)


def test_a_loader_that_is_short_sets_the_step():
    loader = {
        "num_workers": 4,
        "capacity_samples_per_s": 320.0,
        "cpu_s_per_sample": None,
        "cores_per_rank": 8.0,
    }
    job = job_of(ranks=[rank_times(load_s=0.1)], loader=loader)
    # 64 samples at 320/s are 0.2 s; the rest takes 0.1
    assert waited_for_data(job, job.compute_s, 1) == pytest.approx(0.1)
    assert step_time(job, network_of(), 1) == pytest.approx(0.2)


def test_ranks_of_a_node_share_its_cores():
    loader = {
        "num_workers": 4,
        "capacity_samples_per_s": 2000.0,
        "cpu_s_per_sample": 0.01,
        "cores_per_rank": 10.0,
    }
    job = job_of(loader=loader)
    # 10 cores make 1000 samples/s: one rank's 64 in 64 ms, four ranks' in 256 ms
    assert waited_for_data(job, job.compute_s, 1) == 0
    assert waited_for_data(job, job.compute_s, 4) == pytest.approx(0.256 - 0.1)
    step = step_at(job, network_of(speed=1e15, gpus_per_node=4), 4)
    assert step.added_s["data"] == pytest.approx(0.156)


def test_stragglers_by_hand():
    ranks = [rank_times(std_s=0.002)]
    step = step_at(job_of(ranks=ranks), network_of(alpha_s=0, speed=1e15), 2)
    assert step.added_s["straggler"] == pytest.approx(0.002 / math.sqrt(math.pi))


def test_waiting_that_was_measured_is_found_again():
    ranks = [rank_times(rank=i, wait_s=0.004, std_s=0.05) for i in range(4)]
    step = step_at(job_of(ranks=ranks), network_of(alpha_s=0, speed=1e15), 4)
    assert step.added_s["straggler"] + step.added_s["imbalance"] == pytest.approx(0.004)


def test_an_epoch_that_does_not_divide_leaves_ranks_idle():
    job = replace(job_of(), samples_per_epoch=1000)
    # 64 a rank: 15.6 steps alone take 16; four ranks' 3.9 take 4
    assert uneven_share(job, 4) == pytest.approx(max(0.0, 4 / (1000 / 256) - 16 / (1000 / 64)))
    assert uneven_share(replace(job, samples_per_epoch=64 * 5), 4) == pytest.approx(2 / 1.25 - 1)
    assert uneven_share(replace(job, samples_per_epoch=None), 4) == 0


def test_accumulation_hides_behind_the_last_micro_batch_only():
    job = job_of(num_gradients=1, backend="ddp").with_batch(4, micro_batches=True)
    assert (job.samples, job.accumulate, job.backward_s) == (256, 4, pytest.approx(0.24))
    # the one gradient is ready at the end of a micro-batch's backward: all of it is exposed
    assert reduction_s(job, seconds_of(job)) == pytest.approx(0.5)


def seconds_of(job):
    return lambda num_bytes: Cost(0.0, 0.5 * num_bytes / job.gradient_bytes)


def test_local_steps_average_seldom():
    job = replace(job_of(num_gradients=1), local_steps=8)
    assert reduction_s(job, seconds_of(job)) == pytest.approx(0.5 / 8)


def test_compressed_gradients_are_half_as_many_bytes():
    assert job_of(compression="fp16").gradient_bytes == pytest.approx(job_of().gradient_bytes / 2)
    assert job_of().with_bytes(0.5).gradient_bytes == pytest.approx(job_of().gradient_bytes / 2)


@pytest.mark.parametrize("ranks", [2, 8, 64, 512, 4096])
@pytest.mark.parametrize(("speed", "delay_s"), [(1e9, 5e-6), (1e10, 1e-6), (1e8, 1e-6), (1e10, 2e-5)])
@pytest.mark.parametrize("num_gradients", [3, 40, 200])
def test_the_model_agrees_with_a_simulator(ranks, speed, delay_s, num_gradients):
    job = replace(job_of(num_gradients=num_gradients), contention=0.0, fusing=Fusing(64 * 2**20))
    world = World(
        ranks=ranks,
        forward_s=job.forward_s,
        gradients=[(one.bytes, one.ready_s) for one in job.gradients],
        backward_s=job.backward_s,
        optimizer_s=job.optimizer_s,
        delay_s=delay_s,
        speed=speed,
        fuse_bytes=64 * 2**20,
    )
    assert step_time(job, network_of(delay_s, speed), ranks) == pytest.approx(world.run(), rel=0.01)


@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
def test_stragglers_agree_with_a_simulator(ranks):
    job = job_of(ranks=[rank_times(std_s=0.003)], num_gradients=10)
    job = replace(job, contention=0.0, fusing=Fusing(64 * 2**20))
    world = World(
        ranks=ranks,
        forward_s=job.forward_s,
        gradients=[(one.bytes, one.ready_s) for one in job.gradients],
        backward_s=job.backward_s,
        optimizer_s=job.optimizer_s,
        delay_s=1e-7,
        speed=1e9,
        fuse_bytes=64 * 2**20,
        jitter_s=0.003,
    )
    simulated = world.run(steps=max(4, 4000 // ranks))
    assert step_time(job, network_of(1e-7, 1e9), ranks) == pytest.approx(simulated, rel=0.01)


jobs = st.builds(
    lambda num, size, std, wait, load: job_of(
        num_gradients=num,
        gradient_bytes=size,
        ranks=[rank_times(rank=i, std_s=std, wait_s=wait, load_s=load) for i in range(2)],
    ),
    st.integers(1, 30),
    st.integers(1000, 10**9),
    st.floats(0, 0.02),
    st.floats(0, 0.02),
    st.floats(0, 0.2),
)
networks = st.builds(
    lambda alpha, speed, node, many: replace(network_of(alpha, speed, node), hierarchical=many),
    st.floats(0, 1e-3),
    st.floats(1e6, 1e12),
    st.sampled_from([1, 4, 8]),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(job=jobs, network=networks, ranks=st.integers(1, 4096))
def test_the_waterfall_sums_to_the_loss(job, network, ranks):
    step = step_at(job, network, ranks)
    efficiency = step_time(job, network, 1) / step.total_s
    assert list(step.losses()) == list(CAUSES)
    assert sum(step.losses().values()) == pytest.approx(1 - efficiency, abs=1e-12)
    assert 0 < efficiency <= 1 + 1e-12
    assert all(value >= -1e-12 for value in step.added_s.values())


@settings(max_examples=150, deadline=None)
@given(job=jobs, network=networks, ranks=st.integers(1, 4096), factor=st.floats(1, 100))
def test_more_bandwidth_is_never_slower(job, network, ranks, factor):
    bucketed = replace(job, fusing=Fusing(25 * 2**20, as_ready=False))
    faster = replace(network, inside=network.inside.faster(factor), between=network.between.faster(factor))
    assert step_time(bucketed, faster, ranks) <= step_time(bucketed, network, ranks) * (1 + 1e-12)
    # An engine that fuses what is ready may by luck be slower, by one buffer's latency or cycle at most.
    slack = network.allreduce(0, ranks).latency_s + job.fusing.cycle_s
    assert step_time(job, faster, ranks) <= step_time(job, network, ranks) + 2 * slack + 1e-12


@given(sizes=st.lists(st.integers(1, 10**8), min_size=1, max_size=20), ranks=st.integers(2, 64))
def test_fusing_saves_the_latency_of_each_buffer_that_is_saved(sizes, ranks):
    wire = Wire(1e-5, 1e-10)
    apart = sum(ring(size, ranks, wire).total_s for size in sizes)
    fused = ring(sum(sizes), ranks, wire).total_s
    assert apart - fused == pytest.approx((len(sizes) - 1) * 2 * (ranks - 1) * 1e-5, rel=1e-6, abs=1e-12)
