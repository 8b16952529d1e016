--------------------------- MODULE TwoPhaseCommit ---------------------------
(***************************************************************************)
(* The two-phase commit of OnceMQ: one transaction, one coordinator, any   *)
(* number of participants, a client, and a network that loses, repeats,    *)
(* delays and reorders whatever is sent. TLC walks every order in which    *)
(* these can act and crash, and checks the promises at the end of this     *)
(* file. README.md beside it says what is left out, how big the checked    *)
(* models are, and which planted bugs are found.                           *)
(*                                                                         *)
(* How the world is drawn:                                                 *)
(*                                                                         *)
(* - A participant holds one branch of the transaction. What it has in     *)
(*   memory and what is on its disk are two variables: a crash leaves only *)
(*   the second.                                                           *)
(* - A crash and the restart after it are one step. The time between them  *)
(*   looks to everybody else like slow messages, and those are there       *)
(*   anyway.                                                               *)
(* - A sent message stays in the network for ever and may be received any  *)
(*   number of times, or never: that is loss, repetition, delay and        *)
(*   reordering in one.                                                    *)
(* - The client has no variable of its own, because the protocol trusts    *)
(*   nothing it remembers. It may send any request at any time, in both    *)
(*   ways of ending, again and again, with other names each time, before   *)
(*   and after a crash of its own. It is bound to one thing: it names only *)
(*   participants whose vote for commit it has received.                   *)
(* - The otid belongs to the coordinator's first incarnation. Every        *)
(*   restart of the coordinator makes it one of an older incarnation.      *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Participants,   \* The branches of the transaction.
    MaxCrashes,     \* How many crashes there may be, of all parties together.
    Operator,       \* TRUE: somebody may end a branch that is in doubt by hand.
    Bug             \* The planted bug, or "none".

\* Each breaks one rule of the protocol, and TLC must find what comes of it.
Bugs == {
    "decision_not_forced",
    "commit_before_force",
    "second_voting_round",
    "rolled_back_while_undecided",
    "prepared_forgotten",
    "unilateral_rollback",
    "decision_ended_early",
    "lost_vote_taken_for_yes",
    "old_incarnation_accepted",
    "vote_before_force",
    "rollback_during_force",
    "restart_trusts_unforced_decision",
    "late_work_revives_branch",
    "repeated_decide_confirms_its_own_names",
    "otid_forgotten_after_end",
    "outcome_forgotten_before_client",
    "report_forgotten_at_end",
    "nobody_asks",
    "lease_never_expires"
}

Interchangeable == Permutations(Participants)

ASSUME Operator \in BOOLEAN /\ MaxCrashes \in Nat /\ Bug \in Bugs \cup {"none"}

VARIABLES
    \* The coordinator's memory.
    phase,          \* How far it is with the transaction: see Phases.
    registered,     \* Participants that registered themselves, as in the standard way.
    \* The coordinator's disk.
    incarnation,    \* Raised, and forced, at every start.
    log,            \* The decision: whether it is there, and whom it names.
    reported,       \* Hand-made ends that contradict the decision, recorded and reported.
    \* The participants.
    branch,         \* In memory: see Branches.
    disk,           \* What a restart finds.
    \* The rest of the world.
    net,            \* Every message ever sent between coordinator and participants.
    told,           \* Every answer the client was given.
    crashes,        \* How many there were.
    ended           \* History, seen by nobody: the ends that the work of each branch has met.

vars == <<phase, registered, incarnation, log, reported, branch, disk, net, told, crashes, ended>>
coordinator == <<phase, registered, incarnation, log, reported>>
participants == <<branch, disk, ended>>

Phases == {
    "undecided",    \* Nothing was asked for yet; the owner's lease is good.
    "voting",       \* The standard way: prepare went out, votes come in.
    "forcing",      \* The decision is written; the force has not returned.
    "committing",   \* The decision is forced: the commit point is passed.
    "ended",        \* Every named participant's commit is durable; END is written.
    "rolled_back"   \* Never to be committed: told, expired, or of an older incarnation.
}
LogStates == {"empty", "written", "forced", "end_written", "ended"}
Branches == {"working", "prepared", "committed", "rolled_back", "lost",
             "hand_committed", "hand_rolled_back"}
Disks == {"nothing", "prepared", "committed", "rolled_back", "hand_committed", "hand_rolled_back"}

Message(kind, p) == [kind |-> kind, of |-> p]
Kinds == {"vote_commit", "vote_rollback", "commit", "rollback", "question", "settled", "mismatch"}
Send(kind, p) == net' = net \cup {Message(kind, p)}
Sent(kind, p) == Message(kind, p) \in net

Committed(names) == [outcome |-> "committed", named |-> names]
RolledBack == [outcome |-> "rolled_back", named |-> {}]

Init ==
    /\ phase = "undecided"
    \* Those that did not register can only be named by the client: the fast way.
    /\ registered \in SUBSET Participants
    /\ incarnation = 1
    /\ log = [state |-> "empty", named |-> {}]
    /\ reported = {}
    /\ branch = [p \in Participants |-> "working"]
    /\ disk = [p \in Participants |-> "nothing"]
    /\ net = {}
    /\ told = {}
    /\ crashes = 0
    /\ ended = [p \in Participants |-> {}]

-----------------------------------------------------------------------------
(* The participant. *)

RollBackBranch(p) ==
    /\ branch' = [branch EXCEPT ![p] = "rolled_back"]
    /\ ended' = [ended EXCEPT ![p] = @ \cup {"rolled_back"}]

\* Prepare comes from the coordinator (standard) or from the client (fast). The client may send it
\* at any time, so nobody looks whether it was sent. A branch that is not there is never voted for.
PrepareReaches(p) ==
    /\ \/ /\ branch[p] = "working"
          /\ branch' = [branch EXCEPT ![p] = "prepared"]
          \* Force before the vote: after it only the coordinator's word ends the branch.
          /\ disk' = [disk EXCEPT ![p] = IF Bug = "vote_before_force" THEN @ ELSE "prepared"]
          /\ Send("vote_commit", p)
       \/ /\ branch[p] \in {"rolled_back", "lost"}
          /\ Send("vote_rollback", p)
          /\ UNCHANGED <<branch, disk>>
    /\ UNCHANGED <<coordinator, told, crashes, ended>>

\* A timeout, a shutdown, a lost client: before prepare a participant may roll back alone.
RollsBackAlone(p) ==
    /\ \/ branch[p] = "working"
       \/ branch[p] = "prepared" /\ Bug = "unilateral_rollback"
    /\ RollBackBranch(p)
    /\ UNCHANGED <<coordinator, disk, net, told, crashes>>

\* A branch in doubt asks: replay_completion. So does one that was ended by hand, until it has heard
\* what it should have been.
Asks(p) ==
    /\ branch[p] \in {"prepared", "hand_committed", "hand_rolled_back"} /\ Bug # "nobody_asks"
    /\ Send("question", p)
    /\ UNCHANGED <<coordinator, participants, told, crashes>>

\* The record of the commit is lazy: the branch is committed for all who look, and the disk does not
\* know it yet. The answer "not yet durable" gives the coordinator no right, so it is not a message.
CommitReaches(p) ==
    /\ Sent("commit", p)
    /\ \/ /\ branch[p] = "prepared"
          /\ branch' = [branch EXCEPT ![p] = "committed"]
          /\ ended' = [ended EXCEPT ![p] = @ \cup {"committed"}]
          /\ IF Bug = "decision_ended_early" THEN Send("settled", p) ELSE UNCHANGED net
          /\ UNCHANGED disk
       \/ /\ branch[p] = "committed" /\ disk[p] = "committed"
          /\ Send("settled", p)
          /\ UNCHANGED <<branch, disk, ended>>
       \/ /\ branch[p] = "hand_committed"
          /\ branch' = [branch EXCEPT ![p] = "committed"]
          /\ disk' = [disk EXCEPT ![p] = "committed"]
          /\ UNCHANGED <<net, ended>>
       \/ /\ branch[p] = "hand_rolled_back"
          /\ Send("mismatch", p)
          /\ UNCHANGED <<branch, disk, ended>>
    /\ UNCHANGED <<coordinator, told, crashes>>

RollbackReaches(p) ==
    /\ Sent("rollback", p)
    /\ \/ /\ branch[p] \in {"working", "prepared"}
          /\ RollBackBranch(p)
          /\ UNCHANGED <<disk, net>>
       \/ /\ branch[p] = "hand_rolled_back"
          /\ branch' = [branch EXCEPT ![p] = "rolled_back"]
          /\ disk' = [disk EXCEPT ![p] = "rolled_back"]
          /\ UNCHANGED <<net, ended>>
       \/ /\ branch[p] = "hand_committed"
          /\ Send("mismatch", p)
          /\ UNCHANGED <<branch, disk, ended>>
    /\ UNCHANGED <<coordinator, told, crashes>>

\* Some later force takes the lazy record of the end with it.
EndBecomesDurable(p) ==
    /\ branch[p] \in {"committed", "rolled_back"} /\ disk[p] = "prepared"
    /\ disk' = [disk EXCEPT ![p] = branch[p]]
    /\ UNCHANGED <<coordinator, branch, net, told, crashes, ended>>

\* The operator's hand, forced at once and kept.
EndedByHand(p) ==
    /\ Operator /\ branch[p] = "prepared"
    /\ \E end \in {"hand_committed", "hand_rolled_back"} :
          /\ branch' = [branch EXCEPT ![p] = end]
          /\ disk' = [disk EXCEPT ![p] = end]
    /\ UNCHANGED <<coordinator, net, told, crashes, ended>>

\* What is in memory alone is gone. A lazy record is gone too, or else it is read back and is not a
\* bit more durable than before: then the crash has changed nothing and needs no step.
ParticipantCrashes(p) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ \/ /\ disk[p] = "nothing" /\ branch[p] \in {"working", "prepared"}
          /\ branch' = [branch EXCEPT ![p] = "lost"]
          /\ ended' = [ended EXCEPT ![p] = @ \cup {"rolled_back"}]
          /\ UNCHANGED disk
       \/ /\ disk[p] = "prepared" /\ branch[p] # "prepared" /\ Bug # "prepared_forgotten"
          /\ branch' = [branch EXCEPT ![p] = "prepared"]
          /\ UNCHANGED <<disk, ended>>
       \/ /\ disk[p] = "prepared" /\ Bug = "prepared_forgotten"
          /\ branch' = [branch EXCEPT ![p] = "lost"]
          /\ disk' = [disk EXCEPT ![p] = "nothing"]
          /\ ended' = [ended EXCEPT ![p] = @ \cup {"rolled_back"}]
    /\ UNCHANGED <<coordinator, net, told>>

\* A call of the finished or forgotten past arrives late. In the protocol it makes a branch with a
\* new reference, which nobody names; the bug is a branch that passes for the old one.
LateWorkReaches(p) ==
    /\ Bug = "late_work_revives_branch"
    /\ branch[p] \in {"lost", "rolled_back"} /\ disk[p] # "prepared"
    /\ branch' = [branch EXCEPT ![p] = "working"]
    /\ UNCHANGED <<coordinator, disk, net, told, crashes, ended>>

-----------------------------------------------------------------------------
(* The coordinator. *)

\* A request to end the transaction is taken up once. Repeated, it only gets its answer again.
MayBegin ==
    \/ phase = "undecided"
    \/ phase = "rolled_back" /\ Bug = "second_voting_round"
    \/ phase = "ended" /\ Bug = "otid_forgotten_after_end"

\* The standard way: the client asks for commit, and prepare goes to all that registered.
CommitRequestReaches ==
    /\ MayBegin /\ registered # {}
    /\ phase' = "voting"
    /\ UNCHANGED <<registered, incarnation, log, reported, participants, net, told, crashes>>

Decide(names) ==
    /\ phase' = "forcing"
    /\ log' = [state |-> "written", named |-> names]
    /\ UNCHANGED <<registered, incarnation, reported, participants, net, told, crashes>>

AllVotesReach ==
    /\ phase = "voting"
    /\ \A p \in registered : Sent("vote_commit", p) \/ Bug = "lost_vote_taken_for_yes"
    /\ Decide(registered)

\* The fast way: the client has gathered the votes. It names those that count; all others count as
\* rolled back. While the coordinator itself is voting such a request waits.
DecideReaches ==
    /\ MayBegin
    /\ \E names \in SUBSET Participants \ {{}} :
          /\ \A p \in names : Sent("vote_commit", p)
          /\ Decide(names)

\* A vote for rollback, a vote that does not come in time, the owner's rollback, the end of the
\* owner's lease: all of them before the decision is written, and never while it is being forced.
RollsBack ==
    /\ \/ phase \in {"undecided", "voting"}
       \/ phase = "forcing" /\ Bug = "rollback_during_force"
    /\ phase' = "rolled_back"
    /\ UNCHANGED <<registered, incarnation, log, reported, participants, net, told, crashes>>

\* The commit point.
DecisionIsForced ==
    /\ phase = "forcing"
    /\ phase' = "committing"
    /\ log' = [log EXCEPT !.state = IF Bug = "decision_not_forced" THEN @ ELSE "forced"]
    /\ UNCHANGED <<registered, incarnation, reported, participants, net, told, crashes>>

SendsCommit(p) ==
    /\ phase = "committing" \/ (phase = "forcing" /\ Bug = "commit_before_force")
    /\ p \in log.named
    /\ Send("commit", p)
    /\ UNCHANGED <<coordinator, participants, told, crashes>>

SendsRollback(p) ==
    /\ p \in registered
    /\ phase = "rolled_back" \/ (phase = "committing" /\ p \notin log.named)
    /\ Send("rollback", p)
    /\ UNCHANGED <<coordinator, participants, told, crashes>>

\* What a participant is told that asks. After END the coordinator knows of no decision and presumes
\* rollback: only a question from before the end can still be under way then. But a branch whose end
\* by hand was reported goes on asking, and is answered from the report until people say forget.
Answer(p) ==
    CASE phase \in {"undecided", "voting"} ->
            IF Bug = "rolled_back_while_undecided" THEN "rollback" ELSE "wait"
      [] phase = "forcing" -> "wait"
      [] phase = "committing" -> IF p \in log.named THEN "commit" ELSE "rollback"
      [] phase = "ended" ->
            IF p \in reported /\ p \in log.named /\ Bug # "report_forgotten_at_end"
            THEN "commit" ELSE "rollback"
      [] phase = "rolled_back" -> "rollback"

QuestionReaches(p) ==
    /\ Sent("question", p)
    /\ Answer(p) # "wait"
    /\ Send(Answer(p), p)
    /\ UNCHANGED <<coordinator, participants, told, crashes>>

\* A mismatch is recorded by force and shown to people until they say forget.
MismatchReaches(p) ==
    /\ Sent("mismatch", p)
    /\ reported' = reported \cup {p}
    /\ UNCHANGED <<phase, registered, incarnation, log, participants, net, told, crashes>>

\* END is lazy: a crash may bring the decision back.
EndIsWritten ==
    /\ phase = "committing"
    /\ \A p \in log.named : Sent("settled", p) \/ p \in reported
    /\ phase' = "ended"
    /\ log' = [log EXCEPT !.state = "end_written"]
    /\ UNCHANGED <<registered, incarnation, reported, participants, net, told, crashes>>

EndOfLogBecomesDurable ==
    /\ log.state = "end_written"
    /\ log' = [log EXCEPT !.state = "ended"]
    /\ UNCHANGED <<phase, registered, incarnation, reported, participants, net, told, crashes>>

\* The answer to a request to commit, to decide or to tell the outcome, as often as it is repeated.
\* The names are those of the decision, whatever names the request had.
AnswersClient ==
    /\ \/ /\ phase \in {"committing", "ended"}
          /\ told' = told \cup {Committed(log.named)}
       \/ /\ phase = "rolled_back"
          /\ told' = told \cup {RolledBack}
       \/ /\ phase \in {"committing", "ended"} /\ Bug = "repeated_decide_confirms_its_own_names"
          /\ \E names \in SUBSET Participants \ {{}} :
                /\ \A p \in names : Sent("vote_commit", p)
                /\ told' = told \cup {Committed(names)}
       \/ /\ phase = "ended" /\ Bug = "outcome_forgotten_before_client"
          /\ told' = told \cup {RolledBack}
    /\ UNCHANGED <<coordinator, participants, net, crashes>>

\* What the disk may hold after a crash. A record that was not forced may be gone, or may be there
\* and still not durable.
LogsAfterACrash ==
    CASE log.state = "written" -> {log, [state |-> "empty", named |-> {}]}
      [] log.state = "end_written" -> {log, [log EXCEPT !.state = "forced"]}
      [] OTHER -> {log}

\* A restart forces what it has read before it acts on it. Without a decision, an otid of an older
\* incarnation is rolled back.
PhaseAfterARestart(found) ==
    CASE found.state = "written" ->
            IF Bug \in {"restart_trusts_unforced_decision", "decision_not_forced"}
            THEN "committing" ELSE "forcing"
      [] found.state = "forced" -> "committing"
      [] found.state \in {"end_written", "ended"} -> "ended"
      [] found.state = "empty" ->
            IF Bug = "old_incarnation_accepted" THEN "undecided" ELSE "rolled_back"

CoordinatorCrashes ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ incarnation' = incarnation + 1
    /\ registered' = {}
    /\ \E found \in LogsAfterACrash :
          /\ log' = found
          /\ phase' = PhaseAfterARestart(found)
    /\ UNCHANGED <<reported, participants, net, told>>

-----------------------------------------------------------------------------
(* The whole. *)

Next ==
    \/ CommitRequestReaches \/ AllVotesReach \/ DecideReaches \/ RollsBack \/ DecisionIsForced
    \/ EndIsWritten \/ EndOfLogBecomesDurable \/ AnswersClient \/ CoordinatorCrashes
    \/ \E p \in Participants :
          \/ PrepareReaches(p) \/ RollsBackAlone(p) \/ Asks(p) \/ CommitReaches(p)
          \/ RollbackReaches(p) \/ EndBecomesDurable(p) \/ EndedByHand(p) \/ ParticipantCrashes(p)
          \/ LateWorkReaches(p) \/ SendsCommit(p) \/ SendsRollback(p) \/ QuestionReaches(p)
          \/ MismatchReaches(p)

\* What must go on happening for everything to settle. Neither the client nor the operator is among
\* it, nor a message that lies in the network from the past: a message is sure to arrive only while
\* its sender is still repeating it.
Diligence ==
    \/ DecisionIsForced \/ EndIsWritten \/ EndOfLogBecomesDurable \/ AnswersClient
    \/ (phase = "voting" \/ Bug # "lease_never_expires") /\ RollsBack
    \/ \E p \in Participants :
          \/ branch[p] = "working" /\ RollsBackAlone(p)
          \/ EndBecomesDurable(p)
          \/ Asks(p)
          \/ SendsCommit(p)
          \/ branch[p] \in {"prepared", "hand_committed", "hand_rolled_back"} /\ QuestionReaches(p)
          \/ Answer(p) = "rollback" /\ RollbackReaches(p)
          \/ Answer(p) = "commit" /\ CommitReaches(p)
          \/ branch[p] \in {"hand_committed", "hand_rolled_back"} /\ MismatchReaches(p)

Spec == Init /\ [][Next]_vars /\ WF_vars(Diligence)

-----------------------------------------------------------------------------
(* The promises. *)

\* What was ended by hand is outside of every promise but two: it is reported, and truly so.
Gone(p) == branch[p] \in {"rolled_back", "lost"}
Counting == IF log.state = "empty" THEN Participants ELSE log.named

AllThatCountEndTheSameWay ==
    \A p, q \in Counting : ~ (branch[p] = "committed" /\ Gone(q))

NoBranchEndsBothWays ==
    \A p \in Participants : ended[p] # {"committed", "rolled_back"}

WhoIsNotNamedNeverCommits ==
    log.state # "empty" => \A p \in Participants \ log.named : branch[p] # "committed"

ToldCommittedIsTrue ==
    \A answer \in told : answer.outcome = "committed" =>
        \A p \in Participants :
            IF p \in answer.named THEN ~ Gone(p) ELSE branch[p] # "committed"

ToldRolledBackIsTrue ==
    RolledBack \in told => \A p \in Participants : branch[p] # "committed"

ClientHearsOneOutcome == Cardinality(told) <= 1

ReportsAreTrue ==
    \A p \in reported :
        \/ branch[p] = "hand_rolled_back" /\ phase \in {"committing", "ended"} /\ p \in log.named
        \/ branch[p] = "hand_committed" /\ phase \in {"committing", "ended"} /\ p \notin log.named
        \/ branch[p] = "hand_committed" /\ phase = "rolled_back"

TypeOK ==
    /\ phase \in Phases
    /\ registered \subseteq Participants
    /\ incarnation \in 1..(MaxCrashes + 1)
    /\ log.state \in LogStates /\ log.named \subseteq Participants
    /\ reported \subseteq Participants
    /\ branch \in [Participants -> Branches]
    /\ disk \in [Participants -> Disks]
    /\ net \subseteq [kind : Kinds, of : Participants]
    /\ told \subseteq {RolledBack} \cup {Committed(names) : names \in SUBSET Participants}
    /\ crashes \in 0..MaxCrashes
    /\ ended \in [Participants -> SUBSET {"committed", "rolled_back"}]

\* Everything settles: nobody is in doubt, every end is durable, the log is empty again, the client
\* has its answer, and whoever was ended by hand has been confirmed or reported.
Settled ==
    /\ log.state \in {"empty", "ended"}
    /\ told # {}
    /\ \A p \in Participants :
          \/ branch[p] = "committed" /\ disk[p] = "committed"
          \/ Gone(p) /\ disk[p] \in {"nothing", "rolled_back"}
          \/ branch[p] \in {"hand_committed", "hand_rolled_back"} /\ p \in reported

EverythingSettles == <>[] Settled

-----------------------------------------------------------------------------
(* The opposite of promises: TLC must be able to break each of these, for otherwise the promises *)
(* above would hold only because nothing happens.                                                *)

NothingCommitsInTheStandardWay ==
    ~ (Settled /\ log.named = Participants /\ registered = Participants)

NothingCommitsInPart ==
    ~ (Settled /\ log.named # {} /\ \E p \in Participants \ log.named : disk[p] = "rolled_back")

NothingCommitsAfterARestart ==
    ~ (Settled /\ log.named = Participants /\ incarnation > 1 /\ told = {Committed(Participants)})

NothingIsReported == reported = {}
=============================================================================
