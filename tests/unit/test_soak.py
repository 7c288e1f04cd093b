"""`tests/soak.txt` names tests that there are, and leaves each of them a case in `make test`."""

from __future__ import annotations

import re

import pytest

from ..kits.soak import collected, is_soak, soak_patterns


@pytest.fixture(scope="module")
def ids(request):
    """All tests that there are."""
    return collected(request.config)


def test_what_is_left_to_make_soak_is_there(ids):
    """
    Each line of tests/soak.txt is about tests that exist; of each test in it a case stays in `make
    test`, but for those that only wait, kill or measure, or do once more what others do one by one.
    """
    left = {id for id in ids if is_soak(id)}
    whole = {id.partition("[")[0] for id in left} - {id.partition("[")[0] for id in set(ids) - left}

    for pattern in soak_patterns():
        assert any(re.match(pattern, id.removeprefix("tests/")) for id in left), pattern
    assert {id.partition("::")[2] for id in whole} == {
        "test_a13_a_full_stream_leaves_no_row_behind",
        "test_a_backfill_may_be_overtaken_at_every_step",
        "test_a_file_system_that_does_not_answer",
        "test_a_follower_that_lags_is_not_believed",
        "test_a_handful_of_faults",
        "test_a_killed_backfill_of_several_streams_is_taken_up",
        "test_a_killed_copy_into_a_stream_is_taken_up",
        "test_a_killed_range_backfill_is_taken_up",
        "test_a_killed_replay_is_taken_up",
        "test_a_primary_and_an_overflow_query_killed",
        "test_a_query_goes_on_whole",
        "test_a_server_that_restarts_in_a_claim_ahead",
        "test_a_server_that_sleeps_has_forgotten_the_batch",
        "test_a_snapshot_backfill_killed_on_a_cluster_is_taken_up",
        "test_an_executor_and_a_worker_are_killed",
        "test_b19_a_pause_longer_than_the_server_remembers_a_batch",
        "test_benchmarks_write_their_results",
        "test_beyond_a_page_of_the_listing",
        "test_claims_that_are_let_go_count_as_no_delivery",
        "test_driver_killed_amid_consumers_of_the_attempts_own",
        "test_drivers_are_killed_amid_parking",
        "test_heartbeats_keep_the_claims_of_a_replay",
        "test_leaders_change_again_and_again",
        "test_leaders_step_down_again_and_again",
        "test_no_fixed_window_is_as_good_on_all_servers",
        "test_one_that_comes_back_leaves_out_what_another_has_committed",
        "test_partitions_change_while_drivers_die",
        "test_processes_and_the_server_are_killed",
        "test_py_files_with_register",
        "test_refusals_become_rare",
        "test_register_in_an_environment_that_is_not_activated",
        "test_rows_and_lag_of_queries_with_a_standby",
        "test_server_restart_in_the_middle",
        "test_snapshots_and_what_publishers_notice_of_them_are_measured",
        "test_spark_reads_avro",
        "test_spark_runs_with_its_settings",
        "test_spark_submit_with_separate_executors",
        "test_the_cost_of_mapping_is_written",
        "test_the_cost_of_the_disk_is_written",
        "test_the_demo_ends_with_every_step_right",
        "test_the_gradient_is_close_to_the_best_fixed_window",
        "test_the_guides_run_one_after_the_other",
        "test_the_latency_of_rows_is_measured_over_rates",
        "test_the_limit_never_collapses",
        "test_the_number_of_partitions_grows_while_a_query_runs",
        "test_the_second_takes_over_when_the_first_is_killed",
        "test_the_speed_of_keys_and_counters_is_written",
        "test_through_spark_submit",
        "test_whoever_is_killed_each_message_arrives_once",
        "test_writes_under_pressure_are_measured",
    }
