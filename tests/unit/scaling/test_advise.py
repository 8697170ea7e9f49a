"""Advice from a profile: rows, knee, verdict, waterfall, what would help, gates."""

import json

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.advice_document import advice_document
from hvdtrain.scaling.advise import Request, advise
from hvdtrain.scaling.fields import Fields
from hvdtrain.scaling.forecast import Prices, Work, counts_up_to
from hvdtrain.scaling.profile import parse_profile
from tests.unit.scaling.profiles import profile_document, rank_times

SLOW_LOADER = {
    "num_workers": 1,
    "capacity_samples_per_s": 185.0,
    "cpu_s_per_sample": 0.005,
    "cores_per_rank": 64.0,
}


def advice_of(profile=None, **request):
    options = {"network": "NVLink3+25GbE", "max_gpus": 64, "gpus_per_node": 8, **request}
    return advise(parse_profile(Fields(profile_document(**(profile or {})), "p.json")), Request(**options))


def test_counts():
    assert counts_up_to(8, 8) == [1, 2, 4, 8]
    assert counts_up_to(20, 8) == [1, 2, 4, 8, 16, 20]
    assert counts_up_to(12, 6) == [1, 2, 4, 6, 8, 12]
    assert counts_up_to(1, 8) == [1]


def test_steps_time_and_cost_by_hand():
    work = Work(steps=1000, global_batch=64, critical_batch=None)
    assert work.steps_with(256) == 250
    # critical at 192: S = 1000 (1 + 192/256)/(1 + 192/64)
    assert Work(1000, 64, 192).steps_with(256) == pytest.approx(437.5)
    # 8 GPUs for half an hour at 2 and 0.4 kW at 0.3
    assert Prices(2.0, 0.3, 400.0).cost(8, 1800) == pytest.approx(8.0 + 8 * 0.4 * 0.5 * 0.3)
    assert Prices(None, 0.3, None).cost(8, 1800) is None


def test_rows_by_hand():
    advice = advice_of(price=2.0)
    row = advice.forecast.at(8)
    assert row.step_s.value == pytest.approx(0.1, rel=0.02)
    assert row.samples_per_s.value == pytest.approx(8 * 64 / row.step_s.value)
    assert row.efficiency.value == pytest.approx(0.1 / row.step_s.value)
    # 10,000 steps of 64 samples are 1,250 of 512
    assert row.steps == pytest.approx(1250)
    assert row.time_s.value == pytest.approx(1250 * row.step_s.value)
    assert row.cost.value == pytest.approx(8 * 2.0 * row.time_s.value / 3600)
    assert row.efficiency.low < row.efficiency.value <= row.efficiency.high
    assert advice.forecast.at(1).efficiency.low == 1


def test_the_band_widens_where_more_is_lost():
    rows = advice_of().forecast.rows
    assert (
        rows[-1].efficiency.high - rows[-1].efficiency.low > rows[1].efficiency.high - rows[1].efficiency.low
    )


def test_the_waterfall_sums_to_the_loss():
    noisy = {"ranks": [rank_times(load_s=0.02, std_s=0.004)]}
    document = advice_document(advice_of(noisy))
    waterfall = document["waterfall"]
    assert sum(bar["share"] for bar in waterfall["bars"]) == pytest.approx(waterfall["loss"], abs=1e-12)
    assert waterfall["efficiency"] == pytest.approx(1 - waterfall["loss"])
    last = document["predictions"][-1]
    # against GPUs that never wait: 0.1 s of compute of a step
    assert waterfall["efficiency"] == pytest.approx(0.1 / last["step_time_s"])
    parts = last["parts_s"]
    assert sum(parts.values()) == pytest.approx(last["step_time_s"])
    assert [bar["cause"] for bar in waterfall["bars"]] == [
        "data",
        "imbalance",
        "straggler",
        "latency",
        "bandwidth",
    ]


def test_a_network_that_limits_ends_the_scaling():
    advice = advice_of({"gradient_bytes": 1_400_000_000}, network="NVLink3+10GbE")
    assert (advice.recommended_gpus, advice.worth_it, advice.bottleneck) == (8, True, "bandwidth")
    assert advice.verdict.startswith("Use 8 GPUs: ")
    assert "beyond that the network's bandwidth takes" in advice.verdict
    assert advice.what_if[0].gain >= advice.what_if[-1].gain
    assert {"fp16 compression", "a link 4 times as fast"} <= {one.change for one in advice.what_if}


def test_a_fast_network_scales_to_the_end():
    advice = advice_of(network="NVLink3+8xNDR")
    assert (advice.recommended_gpus, advice.bottleneck) == (64, "none")
    assert advice.verdict.startswith("Use 64 GPUs: ")


def test_a_job_that_waits_for_data_is_told_to_mend_that_first():
    slow = {"ranks": [rank_times(load_s=0.245)], "loader": SLOW_LOADER}
    advice = advice_of(slow)
    # 64 samples of 5 ms in 0.1 s are 3.2 workers, and one more
    assert (
        advice.verdict
        == "Do not scale out: 71 % of the step waits for data; give the loader 5 workers first."
    )
    assert (advice.recommended_gpus, advice.worth_it, advice.bottleneck) == (1, False, "data")
    assert advice.what_if[0].change == "5 loader workers"
    assert advice.waterfall[0].share > 0.5


def test_a_loader_without_workers_is_given_some():
    serial = {
        "ranks": [rank_times(load_s=0.1)],
        "loader": {**SLOW_LOADER, "num_workers": 0, "cpu_s_per_sample": None},
    }
    assert "give the loader" in advice_of(serial).verdict


def test_a_replica_that_does_not_fit_is_no_case_for_data_parallelism():
    memory = {
        "parameters_bytes": 6 * 10**9,
        "gradients_bytes": 6 * 10**9,
        "optimizer_bytes": 12 * 10**9,
        "buffers_bytes": 0,
        "peak_bytes": 30 * 10**9,
    }
    advice = advice_of({"memory": memory, "device_memory_bytes": 9 * 10**9})
    assert advice.verdict.startswith(
        "Data parallelism is not the answer: a replica needs 30 GB and the GPU has 9"
    )
    # 24 GB of state over GPUs that give 60 % of 9 GB to it
    assert "over at least 5 GPUs (sharded data parallel)" in advice.verdict
    assert not advice.worth_it
    assert advice_of({"memory": memory, "device_memory_bytes": None}).memory.fits


def test_a_batch_past_the_critical_one_is_no_case_for_data_parallelism():
    advice = advice_of({"noise_scale": {"simple": 40.0, "num_steps": 50}})
    assert "one GPU's batch of 64 is past the critical batch of about 40" in advice.verdict
    assert not advice.worth_it


def test_the_critical_batch_bounds_the_number_of_gpus():
    def recommended(simple):
        return advice_of(
            {"noise_scale": {"simple": simple, "num_steps": 50}}, network="8xNDR"
        ).recommended_gpus

    assert recommended(300.0) < recommended(3000.0) <= recommended(300_000.0) == 64
    advice = advice_of({"noise_scale": {"simple": 300.0, "num_steps": 50}}, network="8xNDR")
    assert "the batch outgrows what the problem can use" in advice.verdict
    assert "more samples to the same target" in advice.verdict


@pytest.mark.parametrize(
    ("request_", "holds"),
    [
        ({"min_efficiency": 0.1}, True),
        ({"min_efficiency": 0.9, "network": "1GbE"}, False),
        ({"min_efficiency": 0.9, "max_gpus": 8}, True),
        ({"deadline_h": 1.0}, True),
        ({"deadline_h": 1e-6}, False),
        ({"budget": 1.0, "price": 2.0}, True),
        ({"budget": 0.1, "price": 2.0}, False),
        ({"budget": 0.56, "deadline_h": 0.02, "price": 2.0, "network": "1GbE"}, False),
    ],
)
def test_gates(request_, holds):
    advice = advice_of(**request_)
    assert advice.is_refused is not holds
    assert all(gate.sentence for gate in advice.gates)


def test_limits_bound_what_is_recommended():
    free = advice_of(price=2.0, network="NVLink3+25GbE")
    tight = advice_of(price=2.0, network="NVLink3+25GbE", min_efficiency=0.9)
    assert (free.recommended_gpus, tight.recommended_gpus) == (64, 8)
    cheap = free.forecast.at(8).cost.value * 1.01
    assert advice_of(price=2.0, network="NVLink3+25GbE", budget=cheap).recommended_gpus == 8


def test_a_limit_that_nothing_can_be_said_of_is_refused():
    with pytest.raises(InputError, match=r"^--deadline: the profile does not tell how many steps"):
        advice_of({"total_steps": None}, deadline_h=1.0)
    with pytest.raises(InputError, match=r"^--budget: a budget needs a price"):
        advice_of(budget=1.0)
    assert not advice_of({"total_steps": None}, deadline_h=1.0, target_steps=10).is_refused


def test_a_price_of_energy_that_counts_for_nothing_is_told():
    told = "--energy-price counts for nothing: the profile tells no power, which is measured on GPUs only"
    gpu = {"utilisation": 0.9, "power_w": 300.0, "energy_j_per_step": 30.0}
    assert told in advice_of(energy_price=0.3).notes
    assert told not in advice_of().notes
    assert told not in advice_of({"gpu": gpu}, energy_price=0.3).notes


def test_steps_come_from_epochs_too():
    advice = advice_of({"total_steps": None, "samples_per_epoch": 6400, "epochs": 3.0})
    assert advice.forecast.work.steps == 300


def test_a_profile_of_two_hosts_is_found_again(tmp_path):
    ranks = [rank_times(rank=i, host="ab"[i], exposed_s=0.02, wait_s=0.003) for i in range(2)]
    fit = {
        "level": "between",
        "library": "horovod",
        "ranks": 2,
        "alpha_s": 1e-3,
        "beta_s_per_byte": 1e-10,
        "residual": 0.0,
    }
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"schema": 1, "kind": "allreduce", "fits": [fit]}))
    advice = advice_of({"ranks": ranks}, network=str(path), gpus_per_node=1, max_gpus=4)
    assert advice.forecast.at(2).step_s.value == pytest.approx(0.123)
    assert advice.forecast.at(4).step_s.value > 0.123


def test_the_document_is_json_with_the_keys_of_the_contract():
    document = json.loads(json.dumps(advice_document(advice_of(price=1.0)), allow_nan=False))
    keys = {"gpus", "throughput", "efficiency", "efficiency_low", "efficiency_high", "step_time_s", "cost"}
    assert all(keys <= set(one) for one in document["predictions"])
    assert {"recommended_gpus", "worth_it", "bottleneck", "verdict", "what_if", "gates", "schema"} <= set(
        document
    )


def test_a_job_that_only_loads_is_no_error():
    idle = {"ranks": [rank_times(load_s=0.1, forward_s=0.0, backward_s=0.0, optimizer_s=0.0)]}
    assert advice_of(idle).verdict.startswith("Do not scale out: 100 % of the step waits for data")


def two_ranks(exposed_s):
    return {"ranks": [rank_times(rank, exposed_s=exposed_s, wait_s=0.001, std_s=0.001) for rank in (0, 1)]}


def test_the_profiled_ranks_are_predicted_as_they_were_measured():
    """Over a link that nobody named: its prior tells less of it than the profile's own reduction."""
    advice = advice_of(two_ranks(0.09), network="25GbE", max_gpus=2)
    row = advice.forecast.at(2)
    assert row.step_s.value == pytest.approx(0.191, rel=0.02)
    assert advice.bottleneck == "latency"
    assert not any("the profile measured" in note for note in advice.notes)


def test_another_link_than_the_profile_ran_over_is_told():
    advice = advice_of(two_ranks(0.09), max_gpus=2)  # NVLink3
    assert advice.forecast.at(2).step_s.value < 0.15
    told = next(note for note in advice.notes if "the profile measured" in note)
    assert told.startswith("the profile measured 670.2 samples/s on 2 ranks, and 1,")
    assert told.endswith(" are predicted: links that are named need not be those of the profile")
