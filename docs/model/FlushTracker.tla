---------------------------- MODULE FlushTracker ----------------------------
(* The way of an ack: PostgreSQL -> capture -> Kafka -> writers and tracking job -> ack table -> capture -> PostgreSQL.

   The WAL is Stream, a sequence of fragments. A place is an index of it. Transactions are numbered in the order of
   their commits. An ack or a confirmation of t says that all transactions up to t are safe: which LSN between two
   commits says so makes no difference here.

   Each shape is a group of its own. Each action names the code that it stands for. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Shapes,
    Stream,         \* of each fragment: [txn, commit: whether it is the last one, shapes: those that it has changes for]
    Drivers,        \* processes of the tracking job that run at the same time
    MaxConnects,    \* how often capture connects
    MaxDrivers,     \* how often a driver starts
    MaxLost,        \* how often the checkpoint is lost
    MaxRemovals,    \* how many shapes are removed
    Transactional,  \* shapes whose writer stores in Kafka's transactions
    Strangers,      \* shapes that another program than their writer stores and notifies, too
    Mutants         \* errors that are built in; {} for the model itself

Places == 1..Len(Stream)
Txns == Stream[Len(Stream)].txn
TxnOf(place) == Stream[place].txn
IsCommit(place) == Stream[place].commit
First(t) == CHOOSE p \in Places : TxnOf(p) = t /\ \A q \in 1..p - 1 : TxnOf(q) # t
End(t) == IF t = 0 THEN 0 ELSE CHOOSE p \in Places : TxnOf(p) = t /\ IsCommit(p)
PlacesOf(s) == {p \in Places : s \in Stream[p].shapes}
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Has(mutant) == mutant \in Mutants

VARIABLES
    slot,       \* up to which transaction PostgreSQL has it confirmed
    capture,    \* [connects, next: the place to publish next, fragment, changes: what of it is published, start]
    topic,      \* the stream of fragments: [place, start: what was confirmed if it is the first of a connection, or -1]
    changes,    \* the last place of which the writers can have the changes
    durable,    \* durable[s]: up to which place a writer has stored its shape
    written,    \* written[s]: the same with what is stored in a transaction that is open or was aborted
    removed,    \* removed[s]: the last transaction that was routed to the shape, Txns + 1 if it was not removed
    checkpoint, \* the committed state of the tracking job: [position, seen, groups]
    lost,       \* how often it was lost
    driver,     \* driver[d]: Down, or [number, state, from, entries, ack, base, appended]
    started,    \* how many drivers have started
    acks        \* the ack table: [ack, writer: the number of the driver that may append]

vars == <<slot, capture, topic, changes, durable, written, removed, checkpoint, lost, driver, started, acks>>

-----------------------------------------------------------------------------
(* Capture *)

IsRouted(s, place) == TxnOf(place) <= removed[s]
Here(place) == {s \in Stream[place].shapes : IsRouted(s, place)}
(* A commit's fragment lists all shapes of its transaction. *)
Listed(place) ==
    IF IsCommit(place) THEN UNION {Here(p) : p \in {q \in Places : TxnOf(q) = TxnOf(place)}} ELSE Here(place)

Connected(confirmed) ==
    [connects |-> capture.connects + 1, next |-> IF confirmed = Txns THEN Len(Stream) + 1 ELSE First(confirmed + 1),
     fragment |-> FALSE, changes |-> FALSE, start |-> confirmed]

(* capture.capture_connection: the server sends again what is not confirmed. The first fragment says from where. *)
Connect ==
    /\ capture.connects < MaxConnects
    /\ capture' = Connected(slot)
    /\ UNCHANGED <<slot, topic, changes, durable, written, removed, checkpoint, lost, driver, started, acks>>

(* A crash of the server may take back a confirmation that was not yet synced. *)
LoseConfirmation ==
    /\ slot > 0
    /\ capture.connects < MaxConnects
    /\ slot' = slot - 1
    /\ capture' = Connected(slot - 1)
    /\ UNCHANGED <<topic, changes, durable, written, removed, checkpoint, lost, driver, started, acks>>

CanPublish == capture.connects > 0 /\ capture.next <= Len(Stream)
NextPlace == [capture EXCEPT !.next = @ + 1, !.fragment = FALSE, !.changes = FALSE, !.start = -1]

(* capture.wire.outbox: the topics get a fragment and its changes in any order. *)
PublishFragment ==
    /\ CanPublish /\ ~capture.fragment
    /\ topic' = Append(topic, [place |-> capture.next, start |-> capture.start])
    /\ capture' = IF capture.changes THEN NextPlace ELSE [capture EXCEPT !.fragment = TRUE, !.start = -1]
    /\ UNCHANGED <<slot, changes, durable, written, removed, checkpoint, lost, driver, started, acks>>

PublishChanges ==
    /\ CanPublish /\ ~capture.changes
    /\ changes' = Max({changes, capture.next})
    /\ capture' = IF capture.fragment THEN NextPlace ELSE [capture EXCEPT !.changes = TRUE]
    /\ UNCHANGED <<slot, topic, durable, written, removed, checkpoint, lost, driver, started, acks>>

(* capture.wire.standby_status: the lesser of the ack and what this process has published. *)
Published == Max({0} \cup {TxnOf(p) : p \in {q \in Places : q < capture.next /\ IsCommit(q)}})
Confirm ==
    LET confirmed == IF Has("confirms what is published") THEN Published ELSE Min({acks.ack, Published}) IN
    /\ capture.connects > 0
    /\ slot < confirmed
    /\ slot' = confirmed
    /\ UNCHANGED <<capture, topic, changes, durable, written, removed, checkpoint, lost, driver, started, acks>>

(* capture.shapes.subscriptions: between two transactions, at the end of all that was ever published. *)
Remove(s) ==
    /\ capture.connects > 0 /\ ~capture.fragment /\ ~capture.changes
    /\ removed[s] > Txns
    /\ Cardinality({r \in Shapes : removed[r] <= Txns}) < MaxRemovals
    /\ IF capture.next > Len(Stream) THEN TRUE ELSE capture.next = First(TxnOf(capture.next))
    /\ \A i \in 1..Len(topic) : topic[i].place < capture.next
    /\ removed' = [removed EXCEPT ![s] = Published]
    /\ UNCHANGED <<slot, capture, topic, changes, durable, written, checkpoint, lost, driver, started, acks>>

-----------------------------------------------------------------------------
(* Writers. One that dies loses nothing that is durable, and notifies again when it starts: it has no other state. *)

Available(s) == {p \in PlacesOf(s) : durable[s] < p /\ p <= changes /\ IsRouted(s, p)}
Flush(s) ==
    /\ Available(s) # {}
    /\ s \in Transactional => Min(Available(s)) <= written[s]
    /\ durable' = [durable EXCEPT ![s] = Min(Available(s))]
    /\ UNCHANGED <<slot, capture, topic, changes, written, removed, checkpoint, lost, driver, started, acks>>

(* A writer that stores rows and notification in one of Kafka's transactions: it stays open, or aborts, until a Flush
   commits it or a later one. *)
Write(s) ==
    /\ s \in Transactional
    /\ Available(s) # {}
    /\ written[s] < Min(Available(s))
    /\ written' = [written EXCEPT ![s] = Min(Available(s))]
    /\ UNCHANGED <<slot, capture, topic, changes, durable, removed, checkpoint, lost, driver, started, acks>>

(* A notification is published after what it says is durable, and may be read at any time from then on, any number of
   times, older ones after later ones. A removal likewise. *)
Notified(s) ==
    LET end == IF Has("notifies before it stores") THEN changes
               ELSE IF Has("reads uncommitted") THEN Max({durable[s], written[s]})
               ELSE durable[s] IN
    {p \in PlacesOf(s) : p <= end}

(* tracking.shape_events.label_of: a shape is tracked by its writer, so what another one notifies of it, who may have
   stored all changes, is told of a label that was sent nothing. *)
Stray(s) == s \o " by another"
Labels == Shapes \cup {Stray(s) : s \in Strangers}
NotifiedByAnother(s) == {p \in PlacesOf(s) : p <= changes}
LabelOfAnother(s) == IF Has("ignores the writer") THEN s ELSE Stray(s)
IsRemoved(s) == removed[s] <= Txns

-----------------------------------------------------------------------------
(* The tracking job: the state of a shape's group *)

(* tracking.shape_group.ShapeGroup. pending: of each pending transaction, the last place that the shape must store.
   heard and heardRemoved are not part of the state: what the group was ever told, for the property Exact. *)
NoGroup ==
    [cursor |-> 0, open |-> 0, openAt |-> 0, pending |-> <<>>, flushed |-> 0, removed |-> FALSE,
     heard |-> 0, heardRemoved |-> FALSE]

Without(f, S) == [x \in DOMAIN f \ S |-> f[x]]
With(f, x, y) == [z \in DOMAIN f \cup {x} |-> IF z = x THEN y ELSE f[z]]
IsFlushed(last, flushed) == IF Has("equality") THEN last = flushed ELSE last <= flushed

ApplyFragment(s, group, place) ==
    LET t == TxnOf(place)
        last == IF s \in Here(place) THEN place ELSE group.openAt
        isIgnored == \/ s \notin Listed(place)
                     \/ place <= group.cursor /\ ~Has("applies resends")
        next == [group EXCEPT !.cursor = Max({@, place})] IN
    IF isIgnored THEN group
    ELSE IF ~IsCommit(place) THEN [next EXCEPT !.open = t, !.openAt = last]
    ELSE IF last = 0 \/ (Has("commit without change") /\ s \notin Here(place))
         THEN [next EXCEPT !.open = 0, !.openAt = 0]
    ELSE [next EXCEPT !.open = 0, !.openAt = 0, !.pending = With(@, t, last)]

RECURSIVE ApplyFragments(_, _, _)
ApplyFragments(s, group, records) ==
    IF records = <<>> THEN group
    ELSE ApplyFragments(s, ApplyFragment(s, group, Head(records).place), Tail(records))

(* The head of tracking.shape_table: what is flushed or removed is dropped; a flush that the cursor has passed, too. *)
Settle(s, group) ==
    LET done == {t \in DOMAIN group.pending :
                    IsFlushed(group.pending[t], group.flushed) \/ (group.removed /\ t <= removed[s])}
        left == Without(group.pending, done)
        open == IF group.open > 0 /\ group.removed /\ group.open <= removed[s] THEN 0 ELSE group.open
        isIdle == DOMAIN left = {} /\ open = 0
        isPassed == isIdle /\ (group.flushed <= group.cursor \/ Has("forgets flushes ahead")) IN
    [group EXCEPT !.pending = left, !.open = open, !.openAt = IF open = 0 THEN 0 ELSE @,
                  !.flushed = IF isPassed THEN 0 ELSE @]

ApplyEvents(s, group, records, flush, isRemoved) ==
    Settle(s, [ApplyFragments(s, group, records) EXCEPT
        !.flushed = Max({@, flush}), !.removed = @ \/ isRemoved,
        !.heard = Max({@, flush}), !.heardRemoved = @ \/ isRemoved])

(* tracking.group_report: the first transaction that is pending, 0 if the group is caught up. *)
Report(group) ==
    LET open == IF group.open > 0 /\ ~IsFlushed(group.openAt, group.flushed) THEN {group.open} ELSE {}
        pending == DOMAIN group.pending \cup open IN
    IF pending = {} THEN 0 ELSE Min(pending)

(* tracking.fragment_chain: the last commit. *)
Seen(state, records) ==
    LET counts(place) == IsCommit(place) \/ Has("takes a fragment for a commit")
        places == {records[i].place : i \in 1..Len(records)} IN
    Max({state.seen} \cup {TxnOf(p) : p \in {q \in places : counts(q)}})

-----------------------------------------------------------------------------
(* The tracking job: its drivers, micro-batches and the ack table *)

Down == [number |-> 0]
IsUp(d) == driver[d] # Down
NoState == [position |-> -1]

(* tracking.shape_group.ShapeGroup.complete: a group takes what the ack includes as done, also if its state is older. *)
Complete(group, ack) ==
    [group EXCEPT !.cursor = Max({@, End(ack)}), !.pending = Without(@, {t \in DOMAIN @ : t <= ack}),
                  !.open = IF @ <= ack THEN 0 ELSE @, !.openAt = IF group.open <= ack THEN 0 ELSE @]

(* tracking.job.recovery; tracking.acks.ack_table: a driver that starts takes the table. *)
Start(d) ==
    LET groups == [s \in Labels |-> Complete(checkpoint.groups[s], acks.ack)]
        state == [checkpoint EXCEPT !.groups = groups, !.seen = Max({@, acks.ack})] IN
    /\ started < MaxDrivers
    /\ ~IsUp(d)
    /\ started' = started + 1
    /\ acks' = [acks EXCEPT !.writer = started + 1]
    /\ driver' = [driver EXCEPT ![d] =
        [number |-> started + 1, state |-> state, from |-> checkpoint,
         entries |-> [s \in Labels |-> Report(groups[s])],
         ack |-> acks.ack, base |-> acks.ack, appended |-> FALSE]]
    /\ UNCHANGED <<slot, capture, topic, changes, durable, written, removed, checkpoint, lost>>

Kill(d) ==
    /\ IsUp(d)
    /\ started < MaxDrivers     \* Somebody starts it again.
    /\ driver' = [driver EXCEPT ![d] = Down]
    /\ UNCHANGED <<slot, capture, topic, changes, durable, written, removed, checkpoint, lost, started, acks>>

(* tracking.flush_tracker: one below the first pending transaction, or the last commit. *)
Ack(entries, seen) ==
    LET pending == {entries[s] : s \in Labels} \ {0} IN
    IF pending = {} THEN seen ELSE Min({seen} \cup {t - 1 : t \in pending})

(* tracking.job.driver: a micro-batch with the next records of the topic and the notifications flushes[s], 0 for none, up
   to the append of its ack. tracking.acks.ack_table refuses the append if another driver has started since. *)
Batch(d, count, flushes, removals) ==
    LET me == driver[d]
        records == SubSeq(topic, me.state.position + 1, me.state.position + count)
        hasEvent(s) == flushes[s] > 0 \/ s \in removals \/ \E i \in 1..count : s \in Listed(records[i].place)
        done == IF Has("completes what is seen") THEN me.state.seen ELSE me.ack
        before(s) == IF hasEvent(s) THEN Complete(me.state.groups[s], done) ELSE me.state.groups[s] IN
    /\ ~me.appended
    (* Of a set with one element, TLC evaluates that once. *)
    /\ \E groups \in {[s \in Labels |-> ApplyEvents(s, before(s), records, flushes[s], s \in removals)]} :
       \E state \in {[position |-> me.state.position + count, seen |-> Seen(me.state, records), groups |-> groups]} :
       \E reported \in {[s \in Labels |-> IF hasEvent(s) THEN Report(groups[s])
                                       ELSE IF Has("forgets groups without events") THEN 0 ELSE me.entries[s]]} :
       \E ack \in {Max({me.ack, Ack(IF Has("commits before entries") THEN me.entries ELSE reported, state.seen)})} :
          /\ state # me.state
          /\ IF acks.writer = me.number \/ Has("appends unfenced")
             THEN /\ acks' = [acks EXCEPT !.ack = IF me.ack = ack THEN @ ELSE ack]
                  /\ driver' = [driver EXCEPT ![d] = [me EXCEPT
                        !.state = state, !.entries = reported, !.ack = ack, !.appended = TRUE]]
             ELSE /\ driver' = [driver EXCEPT ![d] = Down]
                  /\ UNCHANGED acks
    /\ UNCHANGED <<slot, capture, topic, changes, durable, written, removed, checkpoint, lost, started>>

NoFlush == [s \in Labels |-> 0]
Left(d) == Len(topic) - driver[d].state.position

(* Some of the records, and at most one notification or removal: those of other shapes may be in the next batch. *)
AnyBatch(d) ==
    /\ IsUp(d)
    /\ \E count \in 0..Left(d) :
       \/ Batch(d, count, NoFlush, {})
       \/ \E s \in Shapes : \E place \in Notified(s) : Batch(d, count, [NoFlush EXCEPT ![s] = place], {})
       \/ \E s \in Strangers : \E place \in NotifiedByAnother(s) :
             Batch(d, count, [NoFlush EXCEPT ![LabelOfAnother(s)] = place], {})
       \/ \E s \in Shapes : IsRemoved(s) /\ Batch(d, count, NoFlush, {s})

(* Spark commits the batch, unless the checkpoint is another one by now. *)
CommitBatch(d) ==
    /\ IsUp(d) /\ driver[d].appended
    /\ IF driver[d].from = checkpoint
       THEN /\ checkpoint' = driver[d].state
            /\ driver' = [driver EXCEPT ![d].appended = FALSE, ![d].from = driver[d].state]
       ELSE /\ driver' = [driver EXCEPT ![d] = Down]
            /\ UNCHANGED checkpoint
    /\ UNCHANGED <<slot, capture, topic, changes, durable, written, removed, lost, started, acks>>

(* tracking.job.recovery with --recover: without a checkpoint, from where capture has connected last. *)
LastStart == Max({1} \cup {i \in 1..Len(topic) : topic[i].start >= 0}) - 1
LoseCheckpoint ==
    LET isLate == Has("recovers at the end") IN
    /\ lost < MaxLost
    /\ \A d \in Drivers : ~IsUp(d)
    /\ started < MaxDrivers
    /\ lost' = lost + 1
    /\ checkpoint' = [position |-> IF isLate THEN Len(topic) ELSE LastStart, seen |-> acks.ack,
                      groups |-> [s \in Labels |-> NoGroup]]
    /\ UNCHANGED <<slot, capture, topic, changes, durable, written, removed, driver, started, acks>>

-----------------------------------------------------------------------------
Init ==
    /\ slot = 0
    /\ capture = [connects |-> 0, next |-> 1, fragment |-> FALSE, changes |-> FALSE, start |-> -1]
    /\ topic = <<>>
    /\ changes = 0
    /\ durable = [s \in Shapes |-> 0]
    /\ written = [s \in Shapes |-> 0]
    /\ removed = [s \in Shapes |-> Txns + 1]
    /\ checkpoint = [position |-> 0, seen |-> 0, groups |-> [s \in Labels |-> NoGroup]]
    /\ lost = 0
    /\ driver = [d \in Drivers |-> Down]
    /\ started = 0
    /\ acks = [ack |-> 0, writer |-> 0]

Next ==
    \/ Connect \/ LoseConfirmation \/ PublishFragment \/ PublishChanges \/ Confirm \/ LoseCheckpoint
    \/ \E s \in Shapes : Write(s) \/ Flush(s) \/ Remove(s)
    \/ \E d \in Drivers : Start(d) \/ Kill(d) \/ AnyBatch(d) \/ CommitBatch(d)

(* Capture and the writers get on with what they can do. *)
Fairness ==
    /\ WF_vars(capture.connects = 0 /\ Connect) /\ WF_vars(PublishFragment) /\ WF_vars(PublishChanges) /\ WF_vars(Confirm)
    /\ \A s \in Shapes : WF_vars(Write(s)) /\ WF_vars(Flush(s))

Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
(* What must hold *)

IsDurable(s, t) == IsRemoved(s) \/ \A p \in PlacesOf(s) : TxnOf(p) = t => p <= durable[s]
AckIsDurable == \A t \in 1..acks.ack : \A s \in Shapes : IsDurable(s, t)
SlotFollowsAck == slot <= acks.ack
AckNeverGoesBack == [][acks'.ack >= acks.ack]_vars

(* After a batch, the ack is the greatest that is safe by what the job has read. *)
IsKnown(group, s, t) ==
    \/ group.heardRemoved \/ t > removed[s]
    \/ \A p \in PlacesOf(s) : TxnOf(p) = t => p <= group.heard
Exact ==
    \A d \in Drivers : IsUp(d) /\ driver[d].appended =>
        LET me == driver[d]
            isSafe(t) == \A u \in me.base + 1..t : \A s \in Shapes : IsKnown(me.state.groups[s], s, u) IN
        me.ack = Max({t \in 0..Max({me.state.seen, me.base}) : isSafe(t)})

(* If the job catches up again and again, then all is confirmed. That it does is an assumption: a driver that is down is
   started, and a batch reads all that there is some time. *)
CatchesUp == \E d \in Drivers : IsUp(d) /\ ~driver[d].appended /\ driver[d].from = checkpoint /\ LET me == driver[d].state IN
    /\ me.position = Len(topic)
    /\ \A s \in Shapes : me.groups[s].heard = Max({0} \cup Notified(s)) /\ me.groups[s].heardRemoved = IsRemoved(s)
EverythingIsConfirmed == ([]<>CatchesUp) => <>[](slot = Txns)
=============================================================================
