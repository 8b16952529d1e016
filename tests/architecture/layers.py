"""The drawing of the house: what of ours each module may import.

A table, to be read from the top down; `tests/test_architecture.py` holds it against the code.
"""

# A row says what of ours a module may import. Read it as a drawing: imports point down the page,
# so a row names only rows below it. `~` marks what is designed and need not be there yet; its row
# binds it from its first line on. A name with `*` stands for every module without a row of its own.

WORDS = "idl.mapping idl.system idl.cos idl.mq idl.coordination idl.decider idl.custody"
CALLS = f"{WORDS} idl.marshal idl.wire idl.call idl.access idl.process"
WIRE = f"{CALLS} idl.dispatch idl.proxies idl.local idl.orb"
LOG = "mqserver.storage.format mqserver.storage.disk mqserver.storage.log_manager"
FILES = f"{LOG} mqserver.storage.segments mqserver.storage.file_manager mqserver.errors"
INDEX = "mqserver.storage.index mqserver.storage.queue_index mqserver.storage.entries"
SURVEY = (
    f"mqserver.storage.survey mqserver.storage.findings {INDEX} mqserver.storage.contract {FILES}"
)
LIVE = (
    "coordinator.live coordinator.ledger coordinator.protocol coordinator.outcomes "
    "coordinator.participants "
    "coordinator.sessions coordinator.tasks"
)
BRANCHES = "mqserver.transactions.* mqserver.storage.contract mqserver.errors"
COMMANDS = "clients.commands"
COMMAND = f"{COMMANDS}.options {COMMANDS}.reaching {COMMANDS}.terminal clients.store_lines"
PIPELINE = (
    "clients.pipeline.work clients.pipeline.run clients.pipeline.functions "
    "clients.pipeline.progress clients.pipeline.plan clients.pipeline.keys"
)
QUEUES = f"mqserver.queues mqserver.arrivals mqserver.messages mqserver.priorities {BRANCHES}"

# fmt: off
LAYERS = {
    # Outside the house.
    "tests.*":                          "tests.* benchmarks.* oncemq pyspark_oncemq "
                                        "clients* coordinator* mqserver* idl*",
    "~benchmarks.*":                    "benchmarks.* oncemq clients* coordinator* mqserver* idl*",

    # What people type: two front doors of one file each, and the command.
    "pyspark_oncemq":                   "clients.spark.datasource",
    "clients.demo.__main__":            "clients.demo.screen clients.demo.world "
                                        "clients.demo.books clients.demo.tickets "
                                        "clients.demo.processes "
                                        "clients.spark.java",
    "clients.demo.screen":              "clients.demo.world clients.demo.verdict",
    "clients.demo.world":               "clients.demo.books clients.demo.processes "
                                        "clients.demo.verdict oncemq clients.servers "
                                        "clients.spark.java idl.cos",
    "clients.demo.books":               "clients.demo.verdict",
    "clients.demo.processes":           "",
    "clients.demo.verdict":             "",
    "clients.demo.tickets":             "oncemq clients.servers idl.cos",
    "clients.demo":                     "",
    "oncemq":                           "clients clients.spark",
    "clients.pipeline.__main__":        "clients.cli",
    "clients.cli":                      "clients clients.commands.* clients.machine "
                                        "clients.doctor clients.probes",
    "clients.commands.bench":           f"{COMMAND} clients.connecting clients.connection "
                                        "clients.queue",
    "clients.commands.consume":         f"{COMMAND} {COMMANDS}.message {COMMANDS}.message_lines "
                                        f"{COMMANDS}.written clients.connection clients.queue "
                                        "clients.messages clients.errors clients.following idl.mq",
    "clients.commands.message":         f"{COMMAND} {COMMANDS}.message_lines {COMMANDS}.written "
                                        "clients.connection clients.queue clients.messages "
                                        "clients.errors idl.mapping idl.mq",
    "clients.commands.pipeline":        f"{COMMAND} {COMMANDS}.pipeline_view {PIPELINE} "
                                        "clients.spark.java clients.connection idl.settings "
                                        "idl.toml_files",
    "clients.commands.pipeline_view":   f"{COMMANDS}.terminal clients.pipeline.plan "
                                        "clients.pipeline.progress clients.store_lines",
    "clients.commands.admin":           f"{COMMAND} clients.admin {WORDS}",
    "clients.commands.queue":           f"{COMMAND} clients.admin",
    "clients.commands.tx":              f"{COMMAND} clients.admin {CALLS} idl.settings",
    "clients.commands.config":          f"{COMMAND} idl.settings",
    "clients.commands.database":        f"{COMMAND} clients.admin {CALLS} idl.databases",
    "clients.commands.server":          f"{COMMAND} clients.servers",
    "clients.commands.store":           f"clients {COMMANDS}.options {COMMANDS}.terminal "
                                        f"{COMMANDS}.finding_table clients.store_lines "
                                        "clients.stores",
    "clients.commands.machine":         f"clients {COMMANDS}.options {COMMANDS}.terminal "
                                        f"{COMMANDS}.finding_table clients.findings clients.doctor "
                                        "clients.probes",
    "clients.commands.options":         "",
    "clients.commands.reaching":        f"{COMMANDS}.terminal clients.connecting "
                                        "clients.connection clients.errors clients.admin "
                                        f"idl.settings idl.toml_files {WIRE}",
    "clients.commands.finding_table":   f"clients.findings {COMMANDS}.terminal",
    "clients.commands.terminal":        "clients.store_lines",
    "clients.commands.written":         "clients.messages",
    "clients.commands.message_lines":   "clients.messages clients.store_lines idl.mapping",
    "clients.tethered":                 "",
    "clients.servers":                  "",
    "clients.following":                CALLS,

    # clients: everything a user imports or runs. Meets the servers in idl and on the wire; the
    # embedded node alone imports them, and `stores`, which looks at the files of a server that is
    # not running: there is nobody to be asked over the wire.
    "clients":                          "clients.connecting clients.connection clients.messages "
                                        "clients.consumer clients.queue clients.transaction "
                                        "clients.workers clients.tpc clients.zope_transactions "
                                        "clients.errors clients.admin idl.access",
    "clients.zope_transactions":        "clients.tpc clients.connection idl.proxies",
    "clients.tpc":                      "clients.connection clients.queue clients.transaction "
                                        "clients.messages clients.errors",
    "clients.workers":                  "clients.consumer clients.queue clients.transaction "
                                        "clients.messages clients.errors",
    "~clients.console.*":               f"clients.console.* clients.admin {WORDS}",
    # Pipelines: what the file says and what passes is pure; Spark is behind one module.
    "clients.pipeline.work":            "clients.pipeline.functions clients.pipeline.progress "
                                        "clients.pipeline.plan clients.pipeline.keys "
                                        "clients.spark* clients.connection clients.transaction "
                                        "clients.errors idl.databases",
    "clients.pipeline.run":             "clients.pipeline.retrying clients.pipeline.progress "
                                        "clients.pipeline.plan clients.pipeline.keys "
                                        "clients.errors",
    "clients.pipeline.functions":       "clients.pipeline.plan idl.toml_files",
    "clients.pipeline.retrying":        "clients.errors",
    "clients.pipeline.progress":        "",
    "clients.pipeline.plan":            f"clients.pipeline.keys {WORDS} idl.toml_files",
    "clients.pipeline.keys":            f"{WORDS} idl.databases",
    "clients.pipeline":                 "",
    "clients.spark*":                   "clients.spark* clients.connecting clients.connection "
                                        "clients.transaction clients.deciding clients.nodes "
                                        "clients.messages clients.structs clients.two_phase "
                                        "clients.unwrapping clients.database_drivers "
                                        "clients.errors "
                                        f"{CALLS} idl.proxies idl.otids idl.databases",
    "clients.spark.columns":            "clients.spark.errors idl.databases",
    "clients.spark.database_links":     "clients.errors idl.databases",
    "clients.spark.java":               "",
    "clients.spark.slices":             "",
    "clients.spark.rows":               "clients.spark.headers clients.spark.payloads "
                                        "clients.spark.options clients.spark.errors "
                                        "clients.messages clients.structs clients.errors "
                                        f"{WORDS} idl.checksums",
    "clients.spark.headers":            "clients.spark.errors clients.messages clients.structs "
                                        f"{WORDS}",
    "clients.spark.payloads":           "clients.spark.*_payloads clients.spark.payload_types "
                                        "clients.spark.plain_columns clients.spark.options "
                                        "clients.spark.errors",
    "clients.spark.*_payloads":         "clients.spark.plain_columns clients.spark.payload_types "
                                        "clients.spark.times",
    "clients.spark.plain_columns":      "clients.spark.payload_types",
    "clients.spark.payload_types":      "clients.spark.errors",
    "clients.spark.times":              "clients.spark.errors",
    "clients.spark.options":            f"clients.spark.errors {WORDS}",
    "clients.spark.errors":             "clients.errors",
    "clients.admin":                    f"{CALLS} idl.otids",
    "clients.connecting":               "clients.embedded clients.connection clients.heartbeat "
                                        f"clients.nodes clients.errors {WIRE}",
    "clients.connection":               "clients.queue clients.transaction clients.two_phase "
                                        "clients.current clients.deciding clients.heartbeat "
                                        f"clients.nodes clients.errors {CALLS} idl.otids",
    "clients.current":                  CALLS,
    "clients.queue":                    "clients.consumer clients.transaction clients.branches "
                                        "clients.home "
                                        f"clients.nodes clients.messages clients.errors {CALLS} "
                                        "idl.otids",
    "clients.consumer":                 "clients.transaction clients.nodes clients.messages "
                                        "clients.errors",
    "clients.transaction":              "clients.commitment clients.branches clients.deciding "
                                        "clients.home clients.two_phase clients.nodes "
                                        f"clients.errors {CALLS} idl.otids",
    "clients.home":                     "clients.deciding clients.nodes",
    "clients.commitment":               "clients.branches clients.deciding clients.two_phase "
                                        "clients.database_drivers clients.nodes "
                                        f"clients.errors {WORDS}",
    "clients.branches":                 "clients.nodes clients.messages clients.structs "
                                        f"clients.errors {CALLS} idl.proxies idl.otids",
    "clients.nodes":                    f"clients.errors {CALLS} idl.proxies idl.places",
    "clients.deciding":                 "clients.leases clients.two_phase clients.structs "
                                        "clients.errors "
                                        f"{CALLS} idl.otids idl.proxies idl.databases",
    "clients.heartbeat":                f"clients.leases {CALLS}",
    "clients.leases":                   f"{WORDS} idl.otids idl.process",
    "clients.embedded":                 "clients.memory_disk clients.errors mqserver.* "
                                        f"coordinator.* {WIRE}",
    "clients.memory_disk":              "",
    "clients.stores":                   "clients.store_lines clients.findings "
                                        "mqserver.storage.dump mqserver.storage.check "
                                        "mqserver.storage.contract mqserver.storage.findings "
                                        "mqserver.storage.disk mqserver.errors",
    "clients.store_lines":              "",
    "clients.two_phase":                "clients.unwrapping clients.database_drivers "
                                        "clients.errors idl.coordination idl.decider "
                                        "idl.databases",
    "clients.unwrapping":               "clients.*_driver "
                                        "clients.database_drivers clients.errors",
    "clients.*_driver":                 "clients.database_drivers clients.errors idl.custody "
                                        "idl.databases",
    "clients.database_drivers":         "clients.errors idl.databases",
    "clients.messages":                 f"clients.structs clients.errors {WORDS} idl.checksums",
    "clients.structs":                  f"{WORDS} idl.otids",
    "clients.errors":                   f"{WORDS} idl.otids",
    "~clients.config":                  "",
    "clients.probes":                   "clients.machine",
    "clients.doctor":                   "clients.extras clients.findings clients.machine",
    "clients.extras":                   "clients.findings clients.machine",
    "clients.findings":                 "",
    "clients.machine":                  "",

    # coordinator: the transaction service. Its decision log is a log, so that one module uses ours.
    "coordinator.__main__":             "coordinator.* mqserver.storage.disk "
                                        "mqserver.storage.timed_disk mqserver.errors "
                                        "idl.serving idl.settings idl.toml_files idl.logs "
                                        f"idl.turns idl.memory {WIRE}",
    "coordinator.measures":             "coordinator.service idl.measures idl.cos",
    "coordinator.coordination":         "coordinator.interfaces coordinator.service "
                                        "coordinator.timeouts coordinator.database_desk "
                                        "coordinator.database_objects coordinator.settlement "
                                        "coordinator.custody "
                                        f"{LIVE} coordinator.transactions {CALLS} idl.otids "
                                        "idl.turns",
    "coordinator.interfaces":           "coordinator.service coordinator.family "
                                        f"{LIVE} coordinator.transactions {CALLS} idl.otids",
    # Databases in transactions: the desk and the objects above, what decides and the door below.
    "coordinator.database_desk":        "coordinator.database_objects coordinator.databases "
                                        "coordinator.database_recovery "
                                        "coordinator.database_drivers coordinator.registry "
                                        f"coordinator.service {LIVE} {CALLS} idl.databases "
                                        "idl.toml_files mqserver.errors",
    "coordinator.settlement":           "coordinator.database_objects coordinator.deciding_nodes "
                                        "coordinator.database_drivers "
                                        f"{CALLS} idl.databases idl.otids idl.places",
    "coordinator.custody":              "coordinator.databases coordinator.database "
                                        f"coordinator.database_drivers {WORDS} idl.otids",
    "coordinator.database_objects":     "coordinator.databases coordinator.marks "
                                        "coordinator.deciding_nodes idl.places "
                                        "coordinator.database_recovery coordinator.database "
                                        "coordinator.database_kinds coordinator.database_drivers "
                                        "coordinator.registry coordinator.verdicts "
                                        f"coordinator.fates coordinator.service {LIVE} {CALLS} "
                                        "idl.databases idl.otids mqserver.storage.disk",
    "coordinator.service":              "coordinator.timeouts coordinator.family "
                                        "coordinator.transactions coordinator.decision_log "
                                        f"{LIVE} {CALLS} idl.otids",
    "coordinator.timeouts":             "coordinator.family coordinator.transactions "
                                        f"{LIVE} {WORDS}",
    "coordinator.family":               f"coordinator.transactions {LIVE} {CALLS} idl.turns",
    "coordinator.databases":            "coordinator.database_recovery coordinator.database "
                                        "coordinator.database_drivers coordinator.registry "
                                        "coordinator.verdicts coordinator.tasks idl.databases "
                                        "idl.toml_files mqserver.errors",
    "coordinator.database_recovery":    "coordinator.database coordinator.database_drivers "
                                        "coordinator.verdicts coordinator.fates idl.databases "
                                        "idl.otids",
    "coordinator.marks":                "coordinator.verdicts "
                                        f"coordinator.fates idl.databases {WORDS}",
    "coordinator.deciding_nodes":       "coordinator.database_drivers "
                                        f"{CALLS} idl.databases idl.otids",
    "coordinator.database":             "coordinator.database_drivers coordinator.registry "
                                        "idl.custody idl.databases",
    "coordinator.database_kinds":       "coordinator.database_drivers coordinator.registry "
                                        "idl.custody idl.databases",
    "coordinator.database_drivers":     "coordinator.registry idl.custody idl.databases "
                                        "idl.otids",
    "coordinator.registry":             "idl.databases idl.mapping idl.toml_files "
                                        "mqserver.storage.disk",
    "coordinator.verdicts":             "coordinator.transactions coordinator.decision_log "
                                        "coordinator.fates coordinator.sessions idl.databases",
    "coordinator.transactions":         "coordinator.outbox coordinator.delivery coordinator.calls "
                                        f"coordinator.decision_log {LIVE} {WORDS} mqserver.errors "
                                        "idl.turns",
    "coordinator.outbox":               "coordinator.delivery coordinator.live idl.turns",
    "coordinator.delivery":             "coordinator.redelivery coordinator.calls "
                                        f"{LIVE} {CALLS} idl.otids idl.proxies",
    "coordinator.calls":                f"coordinator.protocol coordinator.outcomes {WORDS}",
    "coordinator.redelivery":           f"coordinator.tasks {CALLS} idl.databases",
    "coordinator.fates":                f"coordinator.protocol {WORDS} idl.databases idl.otids "
                                        "idl.places",
    "coordinator.decision_log":         f"coordinator.ledger idl.otids {LOG} mqserver.errors",
    "coordinator.live":                 "coordinator.ledger coordinator.protocol "
                                        f"coordinator.outcomes coordinator.tasks {WORDS}",
    "coordinator.ledger":               f"coordinator.outcomes {WORDS} mqserver.storage.format",
    "coordinator.protocol":             "coordinator.participants "
                                        f"coordinator.outcomes {WORDS}",
    "coordinator.participants":         "coordinator.outcomes",
    "coordinator.outcomes":             WORDS,
    "coordinator.sessions":             "idl.otids",
    "coordinator.tasks":                "",

    # mqserver: a node. interfaces → distribution → queues → transactions → storage → errors.
    # The module that composes the node chooses a backend; all others see the contract.
    "mqserver.__main__":                "mqserver.* idl.serving idl.settings idl.toml_files "
                                        f"idl.logs idl.turns idl.memory {WIRE}",
    "mqserver.measures":                "mqserver.node mqserver.storage.contract mqserver.errors "
                                        "idl.measures",
    "mqserver.node":                    "mqserver.interfaces.* mqserver.events.* "
                                        f"mqserver.permissions {QUEUES} {WIRE} idl.otids",
    "mqserver.interfaces.*":            "mqserver.interfaces.* mqserver.events.* "
                                        "mqserver.permissions mqserver.distribution.* "
                                        f"mqserver.compensation {QUEUES} {WIRE} idl.otids "
                                        "idl.turns idl.checksums",
    "mqserver.events.delivery":         "mqserver.events.workers mqserver.events.ends "
                                        f"mqserver.events.feed mqserver.events.settings {CALLS}",
    "mqserver.events.switchboard":      "mqserver.events.inbox mqserver.events.ends "
                                        "mqserver.events.feed mqserver.events.settings "
                                        f"{QUEUES} {WORDS}",
    "mqserver.events.inbox":            "mqserver.arrivals",
    "mqserver.events.ends":             "mqserver.events.feed mqserver.queues",
    "mqserver.events.workers":          "",
    "mqserver.events.feed":             "",
    "mqserver.events.settings":         "",
    "mqserver.failures":                "mqserver.storage.contract mqserver.errors",
    "mqserver.permissions":             f"idl.orb.audit idl.toml_files {CALLS}",
    "~mqserver.distribution.*":         f"mqserver.distribution.* {QUEUES} {WIRE}",
    "~mqserver.distribution.ri_tree":   "",
    "~mqserver.compensation":           f"{QUEUES} {WORDS}",
    "mqserver.queues":                  "mqserver.waiting mqserver.oql.* mqserver.messages "
                                        f"mqserver.priorities {BRANCHES} {WORDS} idl.turns",
    "mqserver.waiting":                 "mqserver.arrivals mqserver.storage.contract idl.turns",
    "mqserver.arrivals":                "mqserver.storage.contract mqserver.errors",
    "mqserver.transactions.settling":   "mqserver.transactions.decisions "
                                        f"{WIRE} idl.otids",
    "mqserver.transactions.custodian":  "mqserver.transactions.custody "
                                        "mqserver.transactions.requests mqserver.errors "
                                        f"{WIRE} idl.otids",
    "mqserver.transactions.custody":    "mqserver.transactions.requests mqserver.errors "
                                        f"mqserver.storage.contract {WORDS} idl.otids "
                                        "idl.checksums idl.turns",
    "mqserver.transactions.decisions":  "mqserver.transactions.requests mqserver.errors "
                                        f"mqserver.storage.contract {WORDS} idl.otids "
                                        "idl.checksums idl.turns",
    "mqserver.transactions.abandoned":  "mqserver.transactions.work "
                                        "mqserver.transactions.requests mqserver.errors "
                                        f"{WIRE} idl.otids",
    "mqserver.transactions.work":       "mqserver.transactions.resource mqserver.errors "
                                        "mqserver.transactions.requests "
                                        f"mqserver.storage.contract {WORDS} idl.otids idl.turns",
    "mqserver.transactions.alone":      "mqserver.transactions.requests mqserver.errors "
                                        "mqserver.storage.contract idl.turns",
    "mqserver.transactions.joining":    "mqserver.transactions.resource mqserver.errors "
                                        "mqserver.transactions.requests "
                                        f"{WIRE} idl.otids",
    "mqserver.transactions.orphans":    "mqserver.transactions.resource "
                                        "mqserver.transactions.requests "
                                        "mqserver.transactions.branch mqserver.errors "
                                        f"mqserver.storage.contract {WIRE} idl.otids",
    "mqserver.transactions.administration": "mqserver.transactions.resource "
                                        "mqserver.transactions.branch mqserver.errors "
                                        f"mqserver.storage.contract {WIRE} idl.otids",
    "mqserver.transactions.resource":   "mqserver.transactions.actions "
                                        "mqserver.transactions.branch mqserver.errors "
                                        f"mqserver.storage.contract {WIRE} idl.otids idl.turns",
    "~mqserver.transactions.actions":   "mqserver.transactions.branch "
                                        f"mqserver.storage.contract mqserver.errors {WORDS}",
    "mqserver.transactions.requests":   "mqserver.storage.contract mqserver.errors "
                                        f"{WORDS} idl.otids idl.turns",
    "mqserver.transactions.branch":     f"mqserver.storage.contract mqserver.errors {WORDS}",

    # storage: bytes, pages, locks. Knows neither Pyro5 nor CosTransactions nor OQL.
    # Three backends; of the paged one, who composes stands above what is composed.
    "mqserver.storage.dump":            "mqserver.storage.check mqserver.storage.contents "
                                        f"mqserver.storage.runs mqserver.storage.records {SURVEY}",
    "mqserver.storage.check":           "mqserver.storage.contents mqserver.storage.runs "
                                        "mqserver.storage.recovery mqserver.storage.consumers "
                                        "mqserver.storage.payloads mqserver.storage.records "
                                        f"{SURVEY}",
    "mqserver.storage.contents":        "mqserver.storage.runs mqserver.storage.payloads "
                                        "mqserver.storage.records mqserver.storage.findings "
                                        f"{INDEX} mqserver.storage.contract "
                                        f"{FILES} idl.checksums",
    "mqserver.storage.runs":            "mqserver.storage.records mqserver.storage.findings "
                                        f"{INDEX} {FILES} idl.checksums",
    "mqserver.storage.survey":          "mqserver.storage.record_stream mqserver.storage.findings "
                                        f"{FILES}",
    "mqserver.storage.record_stream":   "mqserver.storage.findings mqserver.storage.format "
                                        "mqserver.errors",
    "mqserver.storage.paged":           "mqserver.storage.paged_queues mqserver.storage.payloads "
                                        f"mqserver.storage.records {INDEX} "
                                        "mqserver.storage.lock_manager "
                                        f"mqserver.storage.contract {FILES}",
    "mqserver.storage.paged_queues":    "mqserver.storage.checkpoint mqserver.storage.recovery "
                                        "mqserver.storage.consumers mqserver.storage.payloads "
                                        f"mqserver.storage.records {INDEX} "
                                        f"mqserver.storage.contract {FILES}",
    "mqserver.storage.consumers":       f"mqserver.storage.records {INDEX} "
                                        f"mqserver.storage.contract {FILES}",
    "mqserver.storage.checkpoint":      "mqserver.storage.payloads mqserver.storage.records "
                                        f"{INDEX} mqserver.storage.contract "
                                        f"{FILES}",
    "mqserver.storage.recovery":        "mqserver.storage.payloads mqserver.storage.records "
                                        f"{INDEX} mqserver.storage.contract "
                                        f"{FILES}",
    "mqserver.storage.payloads":        f"{INDEX} mqserver.storage.contract "
                                        f"mqserver.storage.sums {FILES}",
    "mqserver.storage.sums":            "idl.checksums",
    "mqserver.storage.records":         f"{INDEX} mqserver.storage.contract "
                                        "mqserver.storage.format mqserver.errors",
    "mqserver.storage.index":           "mqserver.storage.queue_index mqserver.storage.entries "
                                        "mqserver.storage.contract mqserver.errors",
    "mqserver.storage.queue_index":     "mqserver.storage.entries mqserver.storage.contract "
                                        "mqserver.storage.order",
    "mqserver.storage.entries":         "mqserver.storage.contract",
    "mqserver.storage.order":           "",
    "mqserver.storage.sql*":            "mqserver.storage.sql* mqserver.storage.contract "
                                        "mqserver.errors",
    "mqserver.storage.memory":          "mqserver.storage.contract mqserver.storage.lock_manager "
                                        "mqserver.errors",
    "mqserver.storage.contract":        "mqserver.errors",
    "mqserver.storage.lock_manager":    "mqserver.errors",
    "mqserver.storage.file_manager":    "mqserver.storage.disk mqserver.storage.format "
                                        "mqserver.errors",
    "mqserver.storage.log_manager":     "mqserver.storage.segments mqserver.storage.disk "
                                        "mqserver.storage.format mqserver.errors",
    "mqserver.storage.segments":        "mqserver.storage.disk mqserver.storage.format "
                                        "mqserver.errors",
    "mqserver.storage.timed_disk":      "mqserver.storage.disk",
    "mqserver.storage.disk":            "mqserver.errors",
    "mqserver.storage.findings":        "mqserver.errors",
    "mqserver.storage.format":          "mqserver.errors idl.checksums",

    # oql: the query language. Knows message types, knows neither storage nor idl.
    "~mqserver.oql.predicate":          "mqserver.oql.syntax mqserver.messages mqserver.errors",
    "~mqserver.oql.sql":                "mqserver.oql.syntax mqserver.messages mqserver.errors",
    "~mqserver.oql.syntax":             "mqserver.messages mqserver.errors",
    "~mqserver.priorities":             "mqserver.messages mqserver.errors",
    "~mqserver.messages":               f"mqserver.errors {WORDS}",
    "mqserver.errors":                  "",

    # idl: the contracts, their Python image, and the way to the network. Nothing of ours beneath.
    "idl.serving":                      "idl.settings idl.exposition idl.measures "
                                        "idl.orb.monitor idl.orb.guard idl.dispatch "
                                        f"{CALLS}",
    "idl.exposition":                   "idl.measures",
    "idl.measures":                     "",
    "idl.orb.monitor":                  f"idl.orb.guard {CALLS}",
    "idl.orb":                          "idl.orb.network idl.orb.guard",
    "idl.orb.network":                  "idl.orb.client idl.orb.server idl.orb.endpoint "
                                        "idl.orb.frames idl.orb.guard idl.orb.vigil idl.proxies "
                                        "idl.dispatch "
                                        f"{CALLS}",
    "idl.orb.client":                   "idl.orb.endpoint idl.orb.frames idl.orb.guard "
                                        f"idl.orb.vigil idl.dispatch {CALLS}",
    "idl.orb.server":                   "idl.orb.pump idl.orb.doorway idl.orb.frames idl.orb.guard "
                                        f"idl.orb.audit idl.dispatch idl.turns {CALLS}",
    "idl.orb.pump":                     "idl.turns",
    "idl.orb.doorway":                  "",
    "idl.orb.endpoint":                 f"idl.dispatch idl.turns {CALLS}",
    "idl.orb.frames":                   "idl.orb.guard idl.orb.vigil idl.wire idl.checksums "
                                        "idl.turns",
    "idl.orb.guard":                    "",
    "idl.orb.vigil":                    "",
    "idl.orb.audit":                    "",
    "idl.local":                        f"idl.proxies idl.dispatch {CALLS}",
    "idl.proxies":                      CALLS,
    "idl.dispatch":                     f"idl.turns {CALLS}",
    "idl.settings":                     "idl.toml_files idl.call idl.mapping",
    "idl.logs":                         f"idl.otids idl.call {WORDS}",
    "idl.access":                       f"idl.call {WORDS}",
    "idl.call":                         WORDS,
    "idl.wire":                         "",
    "idl.checksums":                    "",
    "idl.turns":                        "",
    "idl.process":                      "",
    "idl.memory":                       "",
    "idl.toml_files":                   "",
    "idl.marshal":                      f"{WORDS} idl.straight",
    "idl.straight":                     "idl.mapping",
    "idl.custody":                      "idl.databases idl.mq idl.coordination idl.cos "
                                        "idl.mapping",
    "idl.databases":                    "idl.otids idl.places idl.mapping",
    "idl.places":                       "idl.mapping",
    "idl.otids":                        "idl.cos idl.mapping",
    "idl.decider":                      "idl.mq idl.coordination idl.cos idl.mapping",
    "idl.coordination":                 "idl.cos idl.mapping",
    "idl.mq":                           "idl.cos idl.system idl.mapping",
    "idl.cos":                          "idl.system idl.mapping",
    "idl.system":                       "idl.mapping",
    "idl.mapping":                      "",
    "idl.parser":                       "",
}
# fmt: on
