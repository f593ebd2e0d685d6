"""Tests that take long and repeat a law for many operations, faults or formats.

`make test` runs one in so many of their parameters; `None`: none of them. `make test-all` runs all. Tutorials run when the site is
built, too.
"""

SAMPLED = {
    "tests/clients/test_keras.py::test_keras_takes_all_kinds_of_datasets": 3,
    "tests/clients/test_programs.py::test_a_client_gets_from_headrace_what_it_gets_from_grain": 3,
    "tests/hosts/test_endings.py::test_all_processes_make_the_same_steps": 3,
    "tests/hosts/test_meshes.py::test_every_device_has_its_rows_and_columns": 3,
    "tests/hosts/test_meshes.py::test_what_cannot_work_is_refused_with_the_reason": 3,
    "tests/hosts/test_same_arrays.py::test_global_arrays_do_not_depend_on_the_number_of_processes": 2,
    "tests/ray/test_embedded.py::test_a_ray_that_was_started_is_gone": 3,
    "tests/ray/test_faults.py::test_a_node_that_is_added_is_used_within_ten_seconds": 2,
    "tests/ray/test_faults.py::test_actors_killed_at_random_lose_and_repeat_nothing": 2,
    "tests/ray/test_laws.py::test_every_stream_operation_is_one_stream": 8,
    "tests/ray/test_laws.py::test_states_go_from_ray_to_inline_and_processes_and_back": 3,
    "tests/ray/test_nodes.py::test_an_error_that_cannot_be_sent_is_an_error_also_with_a_timeout": 2,
    "tests/ray/test_nodes.py::test_versions_that_differ_are_named": None,
    "tests/soak/test_soak.py::test_every_pipeline_survives_faults": None,
    "tests/soak/test_soak.py::test_what_a_broken_pipeline_does_is_a_failure": 3,
    "tests/sources/test_contract.py::test_elements_and_states_are_the_same_with_workers": 3,
    "tests/sources/test_contract.py::test_several_files_and_patterns_are_read_one_after_the_other": 3,
    "tests/sources/test_damage.py::test_a_damaged_file_is_an_error_or_some_values": 3,
    "tests/sources/test_damage.py::test_a_description_that_is_wrong_is_an_error_or_read": 2,
    "tests/sources/test_damage.py::test_a_file_that_changes_while_it_is_open_is_an_error_that_names_it": 2,
    "tests/sources/test_verify.py::test_intact_files_are_good": 3,
    "tests/test_documents.py::test_the_code_of_a_tutorial_runs": 4,
    "tests/test_interrupts.py::test_signals_while_a_stream_is_read": 3,
    "tests/test_faults.py::test_a_fork_of_the_consumer": 2,
    "tests/test_loader.py::test_batches_and_states_are_the_same_with_workers": 3,
    "tests/test_on_error.py::test_every_operation_is_one_stream_on_processes": 6,
    "tests/test_package.py::test_the_sdist_runs_its_tests": None,
    "tests/test_processes.py::test_every_stream_operation_is_one_stream": 10,
    "tests/test_processes.py::test_what_comes_before_an_error_is_what_comes_inline": 10,
    "tests/test_slots.py::test_every_kind_of_element_arrives_as_it_was": 3,
    "tests/test_states.py::test_states_that_were_saved_before_are_restored": 5,
    "tests/test_timeouts.py::test_a_batch_that_takes_too_long_is_an_error_and_no_record_is_lost_for_it": 2,
    "tests/test_timeouts.py::test_an_element_that_takes_too_long_is_a_bad_record": 3,
}
