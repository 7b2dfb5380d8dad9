"""Plans cover a model exactly once, keep quantization blocks whole, and fit."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.facts import LLAMA_1B, SMOLLM2, llama

from antfarm.errors import PlanError, Reason, RequestError
from antfarm.split import HostShare, Placement, SplitRequest, fewest, part_text, place, plan
from antfarm.split.memory import MIB, Footprint
from antfarm.types import DEFAULT_SLOTS, ModelFacts, Plan, RunOptions, Span, SplitMode

OPTIONS = RunOptions(slots=1)


def hosts(*memory: int, weights: tuple[float, ...] = ()) -> list[HostShare]:
    """Hosts of so many MiB."""
    weights = weights or (1.0,) * len(memory)
    return [HostShare(f"h{i}", size * MIB, weights[i]) for i, size in enumerate(memory)]


def halves(found: Placement) -> list[tuple[int, int]]:
    return [(part.halves.lo, part.halves.hi) for part in found.plan.parts]


def assert_covers(spans: list[Span], end: int) -> None:
    """Adjoining, non-empty, from 0 to the end."""
    assert spans[0].lo == 0 and spans[-1].hi == end
    assert all(len(span) > 0 for span in spans)
    assert all(left.hi == right.lo for left, right in pairwise(spans))


def assert_whole(facts: ModelFacts, found: Plan) -> None:
    """Every layer, head and column belongs to exactly one shard of its stage."""
    stages = found.stages()
    assert [part.shard for part in found.parts] == list(range(len(found.parts)))
    assert_covers([stage[0].halves for stage in stages], 2 * facts.layers)
    assert_covers([stage[0].attention for stage in stages], facts.layers)
    for stage in stages:
        assert {part.halves for part in stage} == {stage[0].halves}
        assert [(part.rank, part.ranks) for part in stage] == [(i, len(stage)) for i in range(len(stage))]
        assert_covers([part.kv_heads for part in stage], facts.kv_heads)
        assert_covers([part.feed_forward for part in stage], facts.feed_forward)


def assert_blocks_whole(facts: ModelFacts, found: Plan) -> None:
    group = facts.heads // facts.kv_heads * facts.head_dim
    block = {t.name.split(".", 2)[2]: t.block for t in facts.tensors if t.name.startswith("blk.0.")}
    for part in found.parts:
        for edge, end in ((part.kv_heads.lo, 0), (part.kv_heads.hi, facts.kv_heads)):
            assert edge == end or edge * group % block["attn_output.weight"] == 0
        for edge, end in ((part.feed_forward.lo, 0), (part.feed_forward.hi, facts.feed_forward)):
            assert edge == end or edge % max(32, block["ffn_down.weight"]) == 0


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelFacts, int, int, tuple[float, ...]]:
    kv_heads, group = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    facts = llama(
        layers=draw(st.integers(1, 12)),
        embedding=256,
        feed_forward=256 * draw(st.integers(1, 9)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([64, 128])),
        vocabulary=512,
        kind=draw(st.sampled_from(["f32", "q4_0", "q4_k"])),
    )
    shards = draw(st.integers(1, 6))
    stages = draw(st.integers(1, shards))
    weights = tuple(draw(st.floats(0.1, 10)) for _ in range(shards))
    return facts, shards, stages, weights


@settings(deadline=None)
@given(cases(), st.sampled_from(["auto", "tensor", "pipeline", "hybrid"]))
def test_any_plan_covers_the_model_once_and_cuts_no_block(
    case: tuple[ModelFacts, int, int, tuple[float, ...]], mode: str
) -> None:
    facts, shards, stages, weights = case
    request = SplitRequest(shards, mode, stages if mode == "hybrid" else 0)
    try:
        found = plan(facts, hosts(*[1 << 20] * shards, weights=weights), request, OPTIONS)
    except PlanError as error:
        assert error.reason is Reason.SPLIT_IMPOSSIBLE
        assert "tensor ranks; pipeline up to" in error.hint
        assert shards > 1
        return
    assert_whole(facts, found.plan)
    assert_blocks_whole(facts, found.plan)


@settings(deadline=None)
@given(cases(), st.lists(st.integers(60, 400), min_size=6, max_size=6))
def test_a_plan_fits_every_host_or_is_refused(
    case: tuple[ModelFacts, int, int, tuple[float, ...]], memory: list[int]
) -> None:
    facts, shards, _, weights = case
    there = hosts(*memory[:shards], weights=weights)
    try:
        found = plan(facts, there, SplitRequest(shards), OPTIONS)
    except PlanError as error:
        assert error.reason in (Reason.NO_CAPACITY, Reason.SPLIT_IMPOSSIBLE)
        return
    assert_whole(facts, found.plan)
    assert all(need.total <= host.memory for need, host in zip(found.plan.memory, there, strict=True))


@settings(deadline=None)
@given(cases())
def test_weights_and_cache_of_all_shards_add_up_to_the_model(
    case: tuple[ModelFacts, int, int, tuple[float, ...]],
) -> None:
    facts, shards, _, weights = case
    try:
        found = plan(facts, hosts(*[1 << 20] * shards, weights=weights), SplitRequest(shards), OPTIONS).plan
    except PlanError:
        return
    norms = sum(t.bytes for t in facts.tensors if t.name.endswith("_norm.weight") and "blk." in t.name)
    copies = found.parts[0].ranks - 1 if found.mode is SplitMode.TENSOR else 0
    expected = facts.bytes + copies * norms
    padding = 32 * len(facts.tensors) * shards + shards * 3
    assert expected <= sum(each.weights for each in found.memory) <= expected + padding
    cache = 2 * 2 * 4096 * facts.layers * facts.kv_heads * facts.head_dim
    assert sum(each.kv_cache for each in found.memory) == cache


def test_three_kv_heads_split_two_and_one() -> None:
    found = plan(SMOLLM2, hosts(2000, 2000), SplitRequest(2), OPTIONS).plan
    assert found.mode is SplitMode.TENSOR
    assert [part.kv_heads for part in found.parts] == [Span(0, 2), Span(2, 3)]
    assert [part.feed_forward for part in found.parts] == [Span(0, 768), Span(768, 1536)]
    assert part_text(found.parts[0]) == "layers 0-29, KV heads 0-1, ffn 0-767"
    assert part_text(found.parts[1]) == "layers 0-29, KV heads 2, ffn 768-1535"


def test_what_can_not_be_says_what_can() -> None:
    with pytest.raises(PlanError) as caught:
        plan(SMOLLM2, hosts(*[2000] * 4), SplitRequest(4, "tensor"), OPTIONS)
    assert caught.value.reason is Reason.SPLIT_IMPOSSIBLE
    assert caught.value.hint == "3 KV heads: at most 3 tensor ranks; pipeline up to 30 stages"
    assert caught.value.numbers == {"max_ranks": 3, "max_stages": 30}
    assert plan(SMOLLM2, hosts(*[2000] * 4), SplitRequest(4), OPTIONS).plan.mode is SplitMode.PIPELINE


def test_too_many_stages_are_refused() -> None:
    with pytest.raises(PlanError, match="31 stages"):
        plan(SMOLLM2, hosts(*[2000] * 31), SplitRequest(31, "pipeline"), OPTIONS)


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="'diagonal'"):
        plan(SMOLLM2, hosts(2000, 2000), SplitRequest(2, "diagonal"), OPTIONS)


def test_heads_that_share_a_block_stay_together() -> None:
    """head_dim 64 x 3 query heads = 192 columns a KV head, and blocks of 256: four heads are the least."""
    facts = llama(
        layers=4, embedding=768, feed_forward=2048, heads=24, kv_heads=8, head_dim=64, vocabulary=512,
        kind="q4_k",
    )  # fmt: skip
    found = plan(facts, hosts(2000, 2000), SplitRequest(2, "tensor"), OPTIONS).plan
    assert [part.kv_heads for part in found.parts] == [Span(0, 4), Span(4, 8)]
    with pytest.raises(PlanError) as caught:
        plan(facts, hosts(2000, 2000, 2000), SplitRequest(3, "tensor"), OPTIONS)
    assert "8 KV heads of which 4 share a block of 256 columns: at most 2 tensor ranks" in caught.value.hint


def test_a_model_whose_heads_share_one_block_becomes_a_pipeline() -> None:
    facts = llama(
        layers=4,
        embedding=256,
        feed_forward=512,
        heads=4,
        kv_heads=2,
        head_dim=64,
        vocabulary=512,
        kind="q4_k",
    )
    assert plan(facts, hosts(2000, 2000), SplitRequest(2), OPTIONS).plan.mode is SplitMode.PIPELINE


def test_speed_decides_shares() -> None:
    found = plan(LLAMA_1B, hosts(4000, 4000, weights=(1.0, 3.0)), SplitRequest(2, "tensor"), OPTIONS).plan
    assert [len(part.kv_heads) for part in found.parts] == [2, 6]
    assert [len(part.feed_forward) for part in found.parts] == [2048, 6144]


def test_asked_shares_replace_speeds() -> None:
    request = SplitRequest(2, "tensor", shares=(3, 1))
    found = plan(LLAMA_1B, hosts(4000, 4000, weights=(1.0, 3.0)), request, OPTIONS).plan
    assert [len(part.kv_heads) for part in found.parts] == [6, 2]
    with pytest.raises(PlanError, match="shares"):
        plan(LLAMA_1B, hosts(4000, 4000), SplitRequest(2, shares=(1,)), OPTIONS)


def test_a_pipelines_lead_gets_fewer_layers_for_its_head() -> None:
    found = plan(SMOLLM2, hosts(2000, 2000), SplitRequest(2, "pipeline"), OPTIONS)
    footprint = Footprint(SMOLLM2)
    read = [sum(footprint.half_bytes[lo:hi]) for lo, hi in halves(found)]
    read[0] += footprint.head
    assert halves(found)[0][1] < 30
    assert abs(read[0] - read[1]) <= max(footprint.half_bytes)


def test_a_stage_may_end_within_a_layer() -> None:
    """Whole layers would leave 9 of 17.1 layers' bytes to the second stage: the head is about one more."""
    found = plan(LLAMA_1B, hosts(4000, 4000), SplitRequest(2, "pipeline"), OPTIONS)
    assert halves(found) == [(0, 15), (15, 32)]
    assert [part_text(part) for part in found.plan.parts] == [
        "layers 0-6, attention of 7",
        "feed-forward of 7, layers 8-15",
    ]


def test_a_hybrid_spreads_ranks_over_stages_evenly() -> None:
    found = plan(LLAMA_1B, hosts(*[4000] * 5), SplitRequest(5, "hybrid", stages=2), OPTIONS).plan
    assert [len(stage) for stage in found.stages()] == [3, 2]
    assert_whole(LLAMA_1B, found)


def test_memory_moves_columns_to_the_roomier_host() -> None:
    roomy = plan(LLAMA_1B, hosts(4000, 4000), SplitRequest(2), RunOptions(context=512, slots=1)).plan
    tight = plan(LLAMA_1B, hosts(380, 4000), SplitRequest(2), RunOptions(context=512, slots=1)).plan
    assert roomy.memory[0].total > 380 * MIB >= tight.memory[0].total
    assert len(tight.parts[0].feed_forward) < len(roomy.parts[0].feed_forward)


def test_memory_moves_heads_when_columns_are_not_enough() -> None:
    options = RunOptions(context=4096, slots=16)  # 2 GiB of cache over 8 heads
    found = plan(LLAMA_1B, hosts(700, 4000), SplitRequest(2, "tensor"), options).plan
    assert len(found.parts[0].kv_heads) < 4
    assert_whole(LLAMA_1B, found)


def test_two_foragers_of_400_mib_hold_what_one_can_not() -> None:
    with pytest.raises(PlanError) as caught:
        plan(LLAMA_1B, hosts(400), SplitRequest(1), OPTIONS)
    assert caught.value.reason is Reason.NO_CAPACITY
    assert "of h0's 400 MiB" in caught.value.message
    assert caught.value.numbers["available"] == 400 * MIB < caught.value.numbers["needed"]
    assert "split=2 would need at most" in caught.value.hint
    found = plan(LLAMA_1B, hosts(400, 400), SplitRequest(2), OPTIONS)
    assert 512 <= found.options.context < 4096
    assert all(need.total <= 400 * MIB for need in found.plan.memory)


def test_a_context_that_was_asked_for_is_never_shortened() -> None:
    with pytest.raises(PlanError, match="context of 4096"):
        plan(LLAMA_1B, hosts(400, 400), SplitRequest(2), RunOptions(context=4096, slots=1))


def test_the_context_chosen_is_the_longest_that_fits() -> None:
    found = plan(LLAMA_1B, hosts(450, 450), SplitRequest(2), OPTIONS)
    longer = RunOptions(context=found.options.context + 256, slots=1)
    with pytest.raises(PlanError):
        plan(LLAMA_1B, hosts(450, 450), SplitRequest(2), longer)


def test_slots_are_as_many_as_fit_up_to_the_default() -> None:
    slots = [
        plan(LLAMA_1B, hosts(memory), SplitRequest(1), RunOptions()).options.slots
        for memory in (4000, 1100, 830)
    ]
    assert slots[0] == DEFAULT_SLOTS > slots[1] > slots[2] == 1
    short = plan(LLAMA_1B, hosts(750), SplitRequest(1), RunOptions()).options
    assert short.slots == 1 and short.context < 4096


def test_slots_that_were_asked_for_are_kept() -> None:
    with pytest.raises(PlanError, match="16 contexts of 512 needs"):
        plan(LLAMA_1B, hosts(750), SplitRequest(1), RunOptions(slots=16))


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": -1},
        {"context": 1},
        {"context": 10**15},
        {"slots": -1},
        {"slots": 10**15},
        {"chunk": 0},
        {"chunk": 10**15},
        {"queue": -1},
        {"queue": 10**15},
        {"prefill_share": 0.0},
        {"prefill_share": 1.0},
        {"kv_type": "q4_k"},
    ],
)
def test_options_that_no_shard_can_run_with_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as failure:
        plan(LLAMA_1B, hosts(4000), SplitRequest(1), RunOptions(**wrong))
    assert failure.value.reason == Reason.BAD_SETTING
    assert failure.value.numbers == {"option": next(iter(wrong))}
    assert failure.value.hint.startswith("take ")


def test_the_largest_options_are_refused_with_numbers() -> None:
    largest = RunOptions(context=1 << 24, slots=1 << 12, chunk=1 << 24, kv_type="f32")
    with pytest.raises(PlanError) as failure:
        plan(LLAMA_1B, hosts(4000), SplitRequest(1), largest)
    assert failure.value.reason == Reason.NO_CAPACITY


def test_a_cache_type_must_hold_a_head() -> None:
    narrow = msgspec.structs.replace(LLAMA_1B, head_dim=80)
    with pytest.raises(PlanError, match="one of f16, f32 for this model"):
        plan(narrow, hosts(4000), SplitRequest(1), RunOptions(kv_type="q8_0"))


def test_a_q8_cache_takes_about_half() -> None:
    exact, small = (
        plan(LLAMA_1B, hosts(4000), SplitRequest(1), RunOptions(slots=1, kv_type=kind))
        .plan.memory[0]
        .kv_cache
        for kind in ("f16", "q8_0")
    )
    assert small == exact * 34 // 64


def test_fewest_takes_no_more_hosts_than_it_needs() -> None:
    assert fewest(LLAMA_1B, hosts(2000, 2000, 2000), SplitRequest(), OPTIONS).hosts == ("h0",)
    assert len(fewest(LLAMA_1B, hosts(600, 600, 600), SplitRequest(), OPTIONS).hosts) == 2


def test_a_whole_context_on_more_hosts_comes_before_a_short_one_on_fewer() -> None:
    found = fewest(LLAMA_1B, hosts(720, 720), SplitRequest(), OPTIONS)
    assert (len(found.hosts), found.options.context) == (2, 4096)
    assert fewest(LLAMA_1B, hosts(720), SplitRequest(), OPTIONS).options.context < 4096


def test_idle_and_fast_hosts_come_first_and_the_roomy_ones_where_it_must_be() -> None:
    there = [
        HostShare("busy", 4000 * MIB, 4.0, shards=1),
        HostShare("slow", 4000 * MIB, 1.0),
        HostShare("fast", 1000 * MIB, 2.0),
        HostShare("small", 100 * MIB, 9.0),
    ]
    assert place(SMOLLM2, there[:3], SplitRequest(2), OPTIONS).hosts == ("fast", "slow")
    assert set(place(LLAMA_1B, there, SplitRequest(2), OPTIONS).hosts) == {"busy", "slow"}
    assert place(SMOLLM2, there[::-1], SplitRequest(2), OPTIONS) == place(
        SMOLLM2, there, SplitRequest(2), OPTIONS
    )


def test_too_few_hosts_are_refused() -> None:
    for request in (SplitRequest(3), SplitRequest(shares=(1, 1, 2)), SplitRequest(stages=3)):
        with pytest.raises(PlanError, match="split=3 needs 3 foragers; the colony has 2") as caught:
            place(SMOLLM2, hosts(2000, 2000), request, OPTIONS)
        assert caught.value.reason is Reason.NO_CAPACITY
    with pytest.raises(PlanError):
        place(SMOLLM2, [], SplitRequest(), OPTIONS)


def test_fewest_keeps_to_a_mode_that_starts_with_two() -> None:
    assert (
        len(fewest(SMOLLM2, hosts(2000, 2000, 2000), SplitRequest(mode="hybrid", stages=2), OPTIONS).hosts)
        == 2
    )


@pytest.mark.timeout(20)
def test_a_large_model_is_refused_at_once() -> None:
    """Looking for what would work may not weigh every cut of 126 layers into every number of stages."""
    large = llama(
        layers=126, embedding=16384, feed_forward=53248, heads=128, kv_heads=8, head_dim=128, vocabulary=512,
    )  # fmt: skip
    with pytest.raises(PlanError) as caught:
        plan(large, hosts(4000, 4000), SplitRequest(2), OPTIONS)
    assert caught.value.reason is Reason.NO_CAPACITY
