"""The dashboards: one of the whole mesh, one for each tier, and one for a tenant."""

from monitoring.expressions import burn, panel, quantiles, rate, stat, total, waiting
from monitoring.panels import Dashboard, Panel

FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"  # noqa: S105  # a metric, no secret
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"  # noqa: S105
DURATION = "gen_ai_server_request_duration_seconds"
REQUESTS = "penstock_edge_requests_total"
REGION_DOORS = 'envoy_cluster_membership_healthy{envoy_cluster_name=~"region_.*"}'


def process_panels(job: str) -> tuple[Panel, ...]:
    """Panels of a process of any tier."""
    scope = f'job=~"{job}.*"'
    return (
        panel("Event loop delay", "s", "{{instance}}", f"penstock_process_loop_delay_seconds{{{scope}}}"),
        Panel(
            "Calls and streams",
            "short",
            {
                "calls {{instance}}": f"penstock_process_calls{{{scope}}}",
                "streams {{instance}}": f"penstock_process_streams{{{scope}}}",
            },
        ),
        panel("Frames refused", "short", "{{kind}}", rate("penstock_process_frames_refused_total", "kind", scope)),
        panel("Draining", "short", "{{instance}}", f"penstock_process_draining{{{scope}}}"),
    )


OVERVIEW = Dashboard(
    "penstock-overview",
    "Penstock: overview",
    (
        stat("Requests", "reqps", rate(REQUESTS)),
        stat("Output tokens", "short", rate("penstock_edge_tokens_total", matchers='type="output"')),
        stat("Waiting", "short", waiting()),
        stat("Workers", "short", total("penstock_scheduler_workers")),
        panel("Requests by outcome", "reqps", "{{outcome}}", rate(REQUESTS, "outcome")),
        burn(),
        Panel("Time to first token", "s", quantiles(FIRST_TOKEN, "class", of=(0.5, 0.95))),
        panel("Reasons of errors", "reqps", "{{reason}}", rate(REQUESTS, "reason", 'reason!=""')),
        panel("Tokens", "short", "{{type}}", rate("penstock_edge_tokens_total", "type")),
        Panel(
            "Slots",
            "short",
            {
                "slots {{model}}": total("penstock_scheduler_slots", "model"),
                "running {{model}}": total("penstock_scheduler_running", "model"),
            },
        ),
        panel("Waiting by class", "short", "{{class}}", waiting("class")),
        panel("Requests by tenant", "reqps", "{{tenant}}", rate(REQUESTS, "tenant")),
    ),
)

EDGE = Dashboard(
    "penstock-edge",
    "Penstock: edge",
    (
        panel("Requests by edge", "reqps", "{{instance}}", rate(REQUESTS, "instance")),
        panel("Active requests", "short", "{{state}}", total("penstock_edge_active", "state")),
        Panel("Time to first token", "s", quantiles(FIRST_TOKEN)),
        Panel("Time per output token", "s", quantiles(PER_TOKEN)),
        Panel("Duration of requests", "s", quantiles(DURATION)),
        panel("Refused for load", "reqps", "{{tier}} {{reason}}", rate("penstock_edge_rejected_total", "tier, reason")),
        Panel(
            "Between regions",
            "reqps",
            {
                "offered to {{region}}: {{outcome}}": rate("penstock_edge_spill_offers_total", "region, outcome"),
                "guests: {{outcome}}": rate("penstock_edge_guest_offers_total", "outcome"),
            },
        ),
        Panel(
            "Requests in other regions",
            "short",
            {
                "in {{region}}": total("penstock_edge_spilled", "region"),
                "guests here": total("penstock_edge_guests"),
            },
        ),
        Panel(
            "Ended early",
            "reqps",
            {
                "resumed: {{kind}}": rate("penstock_edge_resumes_total", "kind"),
                "slow readers": rate("penstock_edge_slow_readers_ended_total"),
                "calls refused: {{reason}}": rate("penstock_edge_refused_calls_total", "reason"),
            },
        ),
        panel(
            "Memory of prompts and unread output",
            "percentunit",
            "{{instance}}",
            "penstock_edge_memory_held_bytes / penstock_edge_memory_limit_bytes",
        ),
        panel("Connected streams", "short", "{{peer}}", total("penstock_edge_links", "peer")),
        Panel(
            "Without auth",
            "short",
            {
                "edges": total("penstock_auth_fallback_active"),
                "{{outcome}}": rate("penstock_auth_fallback_decisions_total", "outcome"),
                "open reservations": total("penstock_edge_reservations_open"),
            },
        ),
        panel("HTTP connections", "short", "{{instance}}", total("penstock_edge_http_connections", "instance")),
        *process_panels("edge"),
    ),
)

AUTH = Dashboard(
    "penstock-auth",
    "Penstock: auth",
    (
        panel("Admitted", "reqps", "{{tenant}}", rate("penstock_auth_admitted_total", "tenant")),
        panel("Refused", "reqps", "{{reason}}", rate("penstock_auth_refused_total", "reason")),
        panel("Limits exceeded", "reqps", "{{limit}}", rate("penstock_auth_limit_refusals_total", "limit")),
        Panel("Time to reserve", "s", quantiles("penstock_auth_reserve_seconds")),
        Panel(
            "Reservations",
            "short",
            {
                "open": total("penstock_auth_reservations"),
                "expired/s": rate("penstock_auth_reservations_expired_total"),
            },
        ),
        panel("Reserved tokens", "short", "tokens", total("penstock_auth_reserved_tokens")),
        Panel(
            "Store",
            "short",
            {
                "available {{instance}}": "penstock_auth_store_available",
                "pending changes {{instance}}": "penstock_auth_store_pending",
            },
        ),
        panel("Disk", "percentunit", "{{instance}}", "penstock_auth_disk_used_ratio"),
        panel("Ledger", "short", "rows", "max(penstock_auth_ledger_rows)"),
        Panel(
            "Partitions and edges",
            "short",
            {"partitions {{instance}}": "penstock_auth_partitions", "edges {{instance}}": "penstock_auth_edges"},
        ),
        panel("Credentials refused", "reqps", "{{kind}}", rate("penstock_auth_authentication_failures_total", "kind")),
        panel("Stored responses", "bytes", "bytes", "max(penstock_auth_stored_response_bytes)"),
        Panel(
            "Regions",
            "short",
            {
                "streams {{side}}": total("penstock_auth_region_streams", "side"),
                "shares": total("penstock_auth_shares"),
                "share changes/s": rate("penstock_auth_share_changes_total"),
                "refused {{reason}}": rate("penstock_auth_refused_joins_total", "reason"),
            },
        ),
        Panel(
            "Home region",
            "short",
            {
                "s without {{instance}}": "penstock_auth_home_unfollowed_seconds",
                "entries that it lacks {{instance}}": "penstock_auth_home_catalog_unknown",
            },
        ),
        Panel("Unconfirmed usage", "s", {"{{instance}}": "penstock_auth_usage_lag_seconds"}),
        Panel(
            "Refused by the home region",
            "short",
            {
                "usage {{field}}/s": rate("penstock_auth_refused_usage_total", "field"),
                "excess claims of shares/s": rate("penstock_auth_excess_claims_total"),
            },
        ),
        *process_panels("auth"),
    ),
)

QUEUE = Dashboard(
    "penstock-queue",
    "Penstock: queue",
    (
        panel("Waiting by class", "short", "{{class}}", waiting("class")),
        panel("Waiting tokens", "short", "{{model}}", total("penstock_queue_tokens", "model") + " or on() vector(0)"),
        Panel("Wait", "s", quantiles("penstock_queue_wait_seconds", "class", of=(0.5, 0.95))),
        Panel("Predicted wait", "s", quantiles("penstock_queue_predicted_wait_seconds", "class", of=(0.5, 0.95))),
        panel("Shed", "reqps", "{{class}} {{reason}}", rate("penstock_queue_shed_total", "class, reason")),
        panel("Leases", "reqps", "{{model}}", rate("penstock_queue_wait_seconds_count", "model")),
        Panel(
            "Offered and running",
            "short",
            {"offered": total("penstock_queue_offered"), "running": total("penstock_queue_running")},
        ),
        panel("Credit of schedulers", "short", "{{model}}", total("penstock_queue_credit", "model")),
        panel("Tokens per second", "short", "{{model}}", total("penstock_queue_tokens_per_second", "model")),
        panel("Connected peers", "short", "{{peer}}", total("penstock_queue_peers", "peer")),
        *process_panels("queue"),
    ),
)

SCHEDULER = Dashboard(
    "penstock-scheduler",
    "Penstock: scheduler",
    (
        panel("Workers", "short", "{{model}}", total("penstock_scheduler_workers", "model")),
        panel("Changes of workers", "short", "{{change}}", rate("penstock_scheduler_worker_changes_total", "change")),
        Panel(
            "Slots",
            "short",
            {
                "slots {{model}}": total("penstock_scheduler_slots", "model"),
                "running {{model}}": total("penstock_scheduler_running", "model"),
                "available leases {{model}}": total("penstock_scheduler_available_leases", "model"),
            },
        ),
        panel(
            "KV blocks promised",
            "percentunit",
            "{{model}}",
            "sum by (model) (penstock_scheduler_kv_blocks_promised) / sum by (model) (penstock_scheduler_kv_blocks)",
        ),
        panel("Placements", "reqps", "{{model}}", rate("penstock_scheduler_placements_total", "model")),
        Panel("Time to choose a worker", "s", quantiles("penstock_scheduler_placement_seconds")),
        panel("Prompt tokens placed", "short", "{{source}}", rate("penstock_scheduler_prompt_tokens_total", "source")),
        panel("Offers declined", "reqps", "{{reason}}", rate("penstock_scheduler_declines_total", "reason")),
        panel("Leases expired", "reqps", "leases", rate("penstock_scheduler_leases_expired_total")),
        panel("Batch leases preempted", "reqps", "leases", rate("penstock_scheduler_leases_preempted_total")),
        panel("Tokens/s when busy", "short", "{{model}}", total("penstock_scheduler_tokens_per_second", "model")),
        *process_panels("scheduler"),
    ),
)

WORKER = Dashboard(
    "penstock-worker",
    "Penstock: worker",
    (
        panel("Runs", "reqps", "{{outcome}}", rate("penstock_worker_runs_total", "outcome")),
        panel("Tokens", "short", "{{type}}", rate("penstock_worker_tokens_total", "type")),
        Panel(
            "Batch",
            "short",
            {
                "running {{instance}}": "penstock_worker_running",
                "waiting {{instance}}": "penstock_worker_waiting",
                "slots {{instance}}": "penstock_worker_slots",
            },
        ),
        panel("KV blocks in use", "percentunit", "{{instance}}", "penstock_kv_blocks_used / (penstock_kv_blocks > 0)"),
        panel("Time of a step", "s", "{{instance}}", "penstock_worker_step_time_recent_seconds"),
        panel(
            "Busy share",
            "percentunit",
            "{{instance}}",
            rate("penstock_worker_step_time_seconds_total", "instance"),
            "Share of time in which the engine computes.",
        ),
        Panel("Time to first token in the worker", "s", quantiles("penstock_worker_time_to_first_token_seconds")),
        Panel("Time per output token in the worker", "s", quantiles("penstock_worker_time_per_output_token_seconds")),
        panel("Preemptions", "reqps", "{{instance}}", rate("penstock_worker_preemptions_total", "instance")),
        panel("Prompt tokens not computed", "short", "{{instance}}", "penstock_worker_prefill_backlog"),
        Panel(
            "Engine",
            "short",
            {
                "ready {{instance}}": "penstock_worker_engine_ready",
                "attached {{instance}}": "penstock_worker_attached",
                "quarantined {{instance}}": "penstock_worker_quarantined",
            },
        ),
        Panel(
            "Cancels",
            "reqps",
            {
                "cancels": rate("penstock_worker_cancels_total"),
                "tokens wasted": rate("penstock_cancel_wasted_tokens_total"),
            },
        ),
        *process_panels("worker"),
    ),
)

ROUTING = Dashboard(
    "penstock-routing",
    "Penstock: routing",
    (
        panel("Edges that proxies use", "short", "{{zone}} {{state}}", total("penstock_routing_edges", "zone, state")),
        panel("Connected proxies", "short", "{{instance}}", "penstock_routing_proxies"),
        panel("Frames from proxies", "reqps", "{{type}} {{kind}}", rate("penstock_xds_requests_total", "type, kind")),
        panel("Frames to proxies", "reqps", "{{type}}", rate("penstock_xds_responses_total", "type")),
        panel("Configurations published", "reqps", "snapshots", rate("penstock_routing_snapshots_total")),
        panel("Failed polls of edges", "reqps", "polls", rate("penstock_routing_discovery_failures_total")),
        # Replicas of routing export the same numbers.
        panel(
            "New calls by region",
            "percentunit",
            "{{region}}",
            "max by (region) (penstock_routing_region_share_ratio)",
            "The region to which a call goes first, if its tenant allows every region.",
        ),
        panel("Drained regions", "short", "{{region}}", "max by (region) (penstock_routing_region_drained_ratio)"),
        panel(
            "Proxies that find a region healthy",
            "short",
            "{{envoy_cluster_name}}",
            f"sum by (envoy_cluster_name) ({REGION_DOORS})",
            "Of each other region: the proxies whose health checks of its region door succeed.",
        ),
        *process_panels("routing"),
    ),
)

BATCH = Dashboard(
    "penstock-batch",
    "Penstock: batch",
    (
        # Replicas of one store export the same number.
        panel("Batches", "short", "{{state}}", "max by (state) (penstock_batch_batches)"),
        panel("Lines left", "short", "lines", "max(penstock_batch_lines_left)"),
        panel("Time left", "s", "last batch", "max(penstock_batch_time_left_seconds)"),
        panel("Lines ended", "reqps", "{{outcome}}", rate("penstock_batch_lines_ended_total", "outcome")),
        panel("Lines held", "short", "{{state}}", total("penstock_batch_lines", "state")),
        panel("Lines that start again", "reqps", "{{cause}}", rate("penstock_batch_lines_returned_total", "cause")),
        Panel("Commit of results", "s", quantiles("penstock_batch_commit_seconds")),
        Panel(
            "Chunks and edges",
            "short",
            {"chunks {{instance}}": "penstock_batch_chunks", "edges {{instance}}": "penstock_batch_edges"},
        ),
        panel("Files", "bytes", "bytes", "max(penstock_batch_files_bytes)"),
        panel("Disk", "percentunit", "{{instance}}", "penstock_batch_disk_used_ratio"),
        panel("Store available", "short", "{{instance}}", "penstock_batch_store_available"),
        *process_panels("batch"),
    ),
)

PICKER = Dashboard(
    "penstock-picker",
    "Penstock: endpoint picker",
    (
        panel("Endpoints", "short", "{{state}}", total("penstock_picker_endpoints", "state")),
        Panel(
            "Slots",
            "short",
            {"slots": total("penstock_picker_slots"), "held": total("penstock_picker_slots_held")},
            meaning="Slots are those of usable endpoints, without those that other users of the servers take.",
        ),
        panel("Requests with an endpoint", "reqps", "{{model}}", rate("penstock_picker_picks_total", "model")),
        panel(
            "Requests without one",
            "reqps",
            "{{class}} {{reason}}",
            rate("penstock_picker_rejections_total", "class, reason"),
        ),
        panel("Waiting", "short", "requests", total("penstock_picker_waiting")),
        Panel("Wait for a slot", "s", quantiles("penstock_picker_wait_seconds", "class", of=(0.5, 0.95))),
        Panel("Time to choose an endpoint", "s", quantiles("penstock_picker_pick_seconds")),
        panel("Prompt tokens", "short", "{{source}}", rate("penstock_picker_prompt_tokens_total", "source")),
        panel("Responses", "reqps", "{{outcome}}", rate("penstock_picker_responses_total", "outcome")),
        Panel(
            "Served elsewhere, and failed scrapes",
            "reqps",
            {
                "served by another endpoint": rate("penstock_picker_moves_total"),
                "scrapes without a load": rate("penstock_picker_scrape_failures_total"),
            },
        ),
        *process_panels("picker"),
    ),
)

OF_TENANT = 'tenant="$tenant"'
TENANT = Dashboard(
    "penstock-tenant",
    "Penstock: tenant",
    (
        panel("Requests by outcome", "reqps", "{{outcome}}", rate(REQUESTS, "outcome", OF_TENANT)),
        panel("Reasons of errors", "reqps", "{{reason}}", rate(REQUESTS, "reason", f'{OF_TENANT}, reason!=""')),
        panel("Tokens", "short", "{{type}}", rate("penstock_edge_tokens_total", "type", OF_TENANT)),
        Panel("Time to first token", "s", quantiles(FIRST_TOKEN, "class", OF_TENANT, of=(0.5, 0.95))),
        panel("Waiting", "short", "{{class}}", waiting("class", OF_TENANT)),
        Panel("Wait in the queue", "s", quantiles("penstock_queue_tenant_wait_seconds", "", OF_TENANT, (0.5, 0.95))),
        panel(
            "Quotas and budgets used",
            "percentunit",
            "{{limit}}",
            f"max by (limit) (penstock_auth_quota_used_ratio{{{OF_TENANT}}}) or on() vector(0)",
        ),
        panel("Refused by auth", "reqps", "{{reason}}", rate("penstock_auth_refused_total", "reason", OF_TENANT)),
    ),
    variables=("tenant",),
)

DASHBOARDS = (OVERVIEW, EDGE, AUTH, QUEUE, SCHEDULER, WORKER, ROUTING, BATCH, PICKER, TENANT)
