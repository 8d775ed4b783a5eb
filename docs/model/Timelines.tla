----------------------------- MODULE Timelines -----------------------------
(* The way of an ack over promotions: a primary, its standby and the standby's copy of the slot; captures that prove that
   a server continues the source, claim it and fence each other; one shape with its snapshot, and a follower, that goes
   on or is healed by a difference.

   LSNs are the places of a server's WAL: a record at l ends at l + 1, where the next one begins. Who has written a record
   is part of it: after a promotion, two servers write different records at the same place. Batches, drivers and
   fragments are left to FlushTracker, appends and folds to ShapeLog. Each action names the code that it stands for. *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Servers,        \* 1 is the primary at first, the others are standbys
    Captures,       \* processes that run at the same time
    Written,        \* the kinds of the records that the primary has at first
    Writes,         \* kind of record -> how many more are written, by all servers
    MaxPromotions,
    MaxStarts,      \* how often a capture starts
    MaxEpochs,
    IsGated,        \* synchronized_standby_slots: a primary sends only what its standbys have
    IsTimely,       \* a capture that was fenced publishes nothing more after the wait
    HasReaders,     \* there are snapshots and a follower
    IsEmpty,        \* the table has no rows when the source begins, so the shape needs no snapshot
    Mutants         \* errors that are built in; {} for the model itself

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : x <= y
Has(mutant) == mutant \in Mutants

VARIABLES
    wal,        \* wal[s]: the records of a server: [by: who wrote it, kind]. Only kind "other" concerns no shape
    server,     \* server[s]: [isPrimary, switches: where each timeline of its history ended, had: see Promote]
    slot,       \* slot[s]: [kind, at: confirmed_flush_lsn, from: what is before is not sent, since: where it was created]
    newest,     \* the server that was promoted last
    sent,       \* sent[s]: how far a server has sent its WAL to captures
    entry,      \* the source's: [epoch, switches, start, holder, published, ends, claimed]
    capture,    \* capture[p]: see Opened; or Down
    starts,     \* how many have started
    refused,    \* whether the newest server was
    fragments,  \* a topic: of each record [lsn, record, follows, start]
    changes,    \* the same, for the shape; without other records
    writer,     \* [read: how much of changes, cursor, stored: a set of <<lsn, record>>]
    tracker,    \* [read: how much of fragments, cursor, pending: a set of LSNs, isStuck: after a gap]
    ack,        \* of the current epoch, in the ack table
    ever,       \* what is stored, or was before the start of an epoch, whose snapshot has it; only for properties
    exported,   \* a snapshot before its commit: [server, lsn, isLocked, isRead, rows], or Nothing
    snapshot,   \* [lsn, rows] of the current epoch, or Nothing
    earlier,    \* the log of the epoch before: [stored, snapshot]
    follower    \* [epoch, lsn, rows], or Nothing

servers == <<wal, server, slot, newest, sent>>
topics == <<fragments, changes>>
consumers == <<writer, tracker, ack, ever>>
readers == <<exported, snapshot, earlier, follower>>
processes == <<capture, starts, refused>>
vars == <<servers, entry, processes, topics, consumers, readers>>

Nothing == [lsn |-> -1]
Down == [state |-> "down"]
IsUp(p) == capture[p].state # "down"
End(s) == Len(wal[s])
IsPrimary(s) == server[s].isPrimary

-----------------------------------------------------------------------------
(* Servers *)

Count(kind) == Cardinality({<<s, l>> \in Servers \X (1..Max({End(t) : t \in Servers})) :
    l <= End(s) /\ wal[s][l] = [by |-> s, kind |-> kind] /\ (s = 1 => l > Len(Written))})
(* TRUNCATE waits for a snapshot that has locked the table. *)
IsLockedOut(s, kind) == kind = "truncate" /\ exported # Nothing /\ exported.server = s /\ exported.isLocked
Write(s, kind) ==
    /\ IsPrimary(s) /\ Count(kind) < Writes[kind] /\ ~IsLockedOut(s, kind)
    /\ wal' = [wal EXCEPT ![s] = Append(@, [by |-> s, kind |-> kind])]
    /\ UNCHANGED <<server, slot, newest, sent, entry, processes, topics, consumers, readers>>

(* A standby is promoted, with some of another server's WAL; what it lacks is lost, and that server may live on. Nothing
   of a standby matters before. Its copy of the slot may be old, or missing, or temporary: it is that until the slot has
   advanced to what the standby can decode, and then a promotion drops it. `had`: how far another server can be sure
   that its standby has received, which it can no longer once that was promoted.

   No two are promoted at the same place: capture could not tell them apart, see docs/architecture.md. *)
Promotions == Cardinality({s \in Servers : IsPrimary(s)}) - 1
Gated == IsGated /\ ~Has("sends ungated")
NoSlot == [kind |-> "none", at |-> 0, from |-> 0, since |-> 0]
Copies(of, end) ==
    LET copy(kind, at, from) == [slot[of] EXCEPT !.kind = kind, !.at = at, !.from = from]
        ats == slot[of].since..Min({slot[of].at, end + 1}) IN
    {NoSlot} \cup {copy("persistent", at, at) : at \in ats} \cup
    (IF Has("accepts a temporary slot") THEN {copy("temporary", at, end + 1) : at \in ats \cap 1..end} ELSE {})
Promote(s, of, end) ==
    LET isReached(i) == server[of].switches[i] <= end
        reached == Cardinality({i \in 1..Len(server[of].switches) : isReached(i)})
        switches == Append(SubSeq(server[of].switches, 1, reached), end + 1) IN
    /\ ~IsPrimary(s) /\ IsPrimary(of) /\ end <= End(of) /\ Promotions < MaxPromotions
    /\ Gated => sent[of] <= end
    /\ \A r \in Servers : server[r].switches # switches
    /\ wal' = [wal EXCEPT ![s] = SubSeq(wal[of], 1, end)]
    /\ server' = [server EXCEPT ![s].isPrimary = TRUE, ![s].switches = switches, ![of].had = Min({@, end})]
    /\ newest' = s /\ refused' = FALSE
    /\ \E copy \in Copies(of, end) : slot' = [slot EXCEPT ![s] = copy]
    /\ UNCHANGED <<sent, entry, capture, starts, topics, consumers, readers>>

(* Somebody creates the slot again. *)
CreateSlot(s) ==
    /\ IsPrimary(s) /\ slot[s].kind = "none"
    /\ slot' = [slot EXCEPT ![s] = [kind |-> "persistent", at |-> End(s) + 1, from |-> End(s) + 1, since |-> End(s) + 1]]
    /\ UNCHANGED <<wal, server, sent, newest, entry, processes, topics, consumers, readers>>

-----------------------------------------------------------------------------
(* capture.source.prior_state: what was published is in the claim, and in the last record of each topic that is above that: a
   capture from before may still have sent a record since, but none above. *)
LastSince(topic, end, isCounted(_)) ==
    LET above == {i \in end + 1..Len(topic) : topic[i].lsn > entry.published \/ Has("takes the last record")} IN
    IF above = {} \/ ~isCounted(topic[Max(above)]) THEN 0 ELSE topic[Max(above)].lsn
Known ==
    LET isCounted(event) == event.record.kind # "other" \/ ~Has("ignores keepalives")
        isRead(event) == ~Has("reads one topic") IN
    Max({entry.published, LastSince(fragments, entry.ends[1], isCounted), LastSince(changes, entry.ends[2], isRead)})
Ends == <<Len(fragments), Len(changes)>>
(* The transaction that was published last, which must be sent again unchanged. *)
LastTxn ==
    LET txns == {i \in 1..Len(fragments) : fragments[i].record.kind # "other"} IN
    IF txns = {} THEN [lsn |-> 0]
    ELSE LET last == fragments[CHOOSE i \in txns : \A j \in txns : fragments[j].lsn <= fragments[i].lsn] IN
         [lsn |-> last.lsn, record |-> last.record]

(* capture.source.continuity, capture.wire.history_check: whether a server continues the source. *)
Continues(switches, before) == Len(before) <= Len(switches) /\ SubSeq(switches, 1, Len(before)) = before
IsLater(s, before) == Len(server[s].switches) > Len(before)
IsProven(s, before, known, confirmed) ==
    LET switches == server[s].switches
        switch == switches[Len(before.switches) + 1]
        safe == Max({before.start, ack})
        all == Max({known, safe}) IN
    /\ Continues(switches, before.switches)
    /\ Len(before.claimed) > 0 => Continues(switches, before.claimed)
    /\ IsLater(s, before.switches) => IF Has("switch point off by one") THEN all <= switch ELSE all < switch
    /\ all <= End(s) + 1
    /\ confirmed <= safe + 1 \/ Has("accepts a later slot")

(* capture.source.publish_fence: whoever has read the registry before an entry of somebody else finds that. *)
Fence(processes_, p) ==
    [q \in Captures |-> IF q # p /\ processes_[q].state # "down" THEN [processes_[q] EXCEPT !.fenced = TRUE] ELSE processes_[q]]

(* The server drops a connection that has held the slot. A claim that is on its way may still arrive. *)
Dropped(s) == [q \in Captures |->
    IF IsUp(q) /\ capture[q].server = s /\ capture[q].state \notin {"lost", "claiming"}
    THEN [capture[q] EXCEPT !.state = "lost"] ELSE capture[q]]
IsQueued(p) == capture[p].fragment < capture[p].next \/ capture[p].change < capture[p].next

(* capture.capture_loop, capture.source.source_opening: once it holds the slot, it reads the registry and the topics. *)
Opened(s, token, others) ==
    [state |-> "opened", server |-> s, token |-> token, others |-> others, fenced |-> FALSE, before |-> entry,
     claim |-> Nothing, known |-> Known, ends |-> Ends, last |-> LastTxn, confirmed |-> slot[s].at, end |-> End(s),
     next |-> 0, fragment |-> 0, change |-> 0, sentFragment |-> -1, sentChange |-> -1]
CanOpen(s) == IsPrimary(s) /\ slot[s].kind # "none"
Open(p, s) ==
    /\ ~IsUp(p) /\ starts < MaxStarts /\ CanOpen(s)
    /\ starts' = starts + 1
    /\ capture' = [Dropped(s) EXCEPT ![p] = Opened(s, starts + 1, FALSE)]
    /\ UNCHANGED <<servers, entry, refused, topics, consumers, readers>>
(* The same process connects again, with nothing queued. *)
Reopen(p, s) ==
    /\ IsUp(p) /\ capture[p].state = "lost" /\ ~IsQueued(p) /\ starts < MaxStarts /\ CanOpen(s)
    /\ starts' = starts + 1
    /\ capture' = [Dropped(s) EXCEPT ![p] = Opened(s, capture[p].token, capture[p].others)]
    /\ UNCHANGED <<servers, entry, refused, topics, consumers, readers>>

Refuse(p) == refused' = (refused \/ capture[p].server = newest) /\ capture' = [capture EXCEPT ![p] = Down]
Running(me) == [me EXCEPT !.state = "running", !.next = me.confirmed, !.fragment = me.confirmed, !.change = me.confirmed]

(* The proof, and CapturedSource.claim: on the same timeline, another capture may still publish what this server has sent
   it. It looks at the registry just before; the claim is there later, and meanwhile others may claim the source. *)
Claim(p) ==
    LET me == capture[p]
        isLater == IsLater(me.server, me.before.switches)
        hasOthers == me.before.holder \notin {0, me.token}
        published == IF ~isLater /\ hasOthers THEN Max({me.known, me.end}) ELSE me.known
        claimed == [me.before EXCEPT !.holder = me.token, !.published = published, !.ends = me.ends,
                                     !.claimed = IF isLater THEN server[me.server].switches ELSE <<>>] IN
    /\ IsUp(p) /\ me.state = "opened"
    /\ IF me.fenced THEN capture' = [capture EXCEPT ![p] = Down] /\ UNCHANGED refused
       ELSE IF ~IsProven(me.server, me.before, me.known, me.confirmed) THEN Refuse(p)
       ELSE /\ capture' = [capture EXCEPT ![p].state = "claiming", ![p].claim = claimed, ![p].others = @ \/ hasOthers]
            /\ UNCHANGED refused
    /\ UNCHANGED <<servers, entry, starts, topics, consumers, readers>>

(* The claim is confirmed. It looks again: of claims that cross, only the first one holds. *)
EndClaim(p) ==
    LET me == capture[p]
        mine == [me EXCEPT !.before = me.claim, !.claim = Nothing]
        next == IF me.fenced /\ ~Has("looks only before") THEN Down
                ELSE IF IsLater(me.server, me.before.switches) THEN [mine EXCEPT !.state = "waiting"]
                ELSE Running(mine) IN
    /\ IsUp(p) /\ me.state = "claiming"
    /\ entry' = me.claim
    /\ capture' = Fence([capture EXCEPT ![p] = next], p)
    /\ UNCHANGED <<servers, starts, refused, topics, consumers, readers>>

(* What a takeover waits for: a claim that was made without knowing of its own is there, or discarded; and another
   capture, unless that had stopped, publishes nothing more. *)
IsAwaited(q, others) ==
    /\ IsUp(q) /\ capture[q].fenced
    /\ CASE capture[q].state = "opened" -> FALSE
         [] capture[q].state = "claiming" -> ~Has("does not wait for claims")
         [] OTHER -> IsTimely /\ others /\ ~Has("does not wait") /\ ~Has("no fence")

(* SourceOpening.open: after the wait it reads again, and proves again, or retracts. *)
EndWait(p) ==
    LET me == capture[p]
        again == [me EXCEPT !.state = "proven", !.others = FALSE, !.before = entry, !.last = LastTxn] IN
    /\ IsUp(p) /\ me.state = "waiting"
    /\ \A q \in Captures \ {p} : ~IsAwaited(q, me.others)
    /\ IF entry.holder # me.token THEN capture' = [capture EXCEPT ![p] = Down] /\ UNCHANGED <<entry, refused>>
       ELSE IF IsProven(me.server, entry, Known, me.confirmed)
       THEN capture' = [capture EXCEPT ![p] = again] /\ UNCHANGED <<entry, refused>>
       ELSE /\ entry' = [entry EXCEPT !.holder = 0, !.claimed = <<>>]
            /\ refused' = (refused \/ me.server = newest)
            /\ capture' = Fence([capture EXCEPT ![p] = Down], p)
    /\ UNCHANGED <<servers, starts, topics, consumers, readers>>

(* CapturedSource.retract: capture is stopped during the wait. If it has others, these may still publish. *)
StopWaiting(p) ==
    /\ IsUp(p) /\ capture[p].state = "waiting" /\ starts < MaxStarts
    /\ LET isReleased == ~capture[p].others \/ Has("retracts as released") IN
       entry' = [capture[p].before EXCEPT !.holder = IF isReleased THEN 0 ELSE @, !.claimed = <<>>]
    /\ capture' = Fence([capture EXCEPT ![p] = Down], p)
    /\ UNCHANGED <<servers, starts, refused, topics, consumers, readers>>

(* CapturedSource.begin: the entry has the new timeline before the first fragment. *)
Begin(p) ==
    LET me == capture[p]
        moved == [me.before EXCEPT !.switches = server[me.server].switches, !.claimed = <<>>] IN
    /\ IsUp(p) /\ me.state = "proven"
    /\ entry' = moved
    /\ capture' = Fence([capture EXCEPT ![p] = Running([me EXCEPT !.before = moved])], p)
    /\ UNCHANGED <<servers, starts, refused, topics, consumers, readers>>

-----------------------------------------------------------------------------
(* Capture, connected: what it has got from its server is queued, and published topic by topic. *)

(* With gates, a server sends only what its standby has confirmed. *)
CanSend(s) == IF Gated THEN Min({End(s), server[s].had}) ELSE End(s)
Receive(p) ==
    LET me == capture[p]
        upTo == CanSend(me.server)
        isOther == me.last.lsn \in me.next..upTo /\ me.last.record # wal[me.server][me.last.lsn] IN
    /\ me.state = "running" /\ me.next <= upTo
    /\ sent' = [sent EXCEPT ![me.server] = Max({@, upTo})]
    /\ IF isOther THEN Refuse(p)
       ELSE capture' = [capture EXCEPT ![p].next = upTo + 1] /\ UNCHANGED refused
    /\ UNCHANGED <<wal, server, slot, newest, entry, starts, topics, consumers, readers>>

IsSent(p, l) == l >= slot[capture[p].server].from
Event(p, l, before) ==
    [lsn |-> l, record |-> wal[capture[p].server][l], start |-> before < 0,
     follows |-> IF before < 0 THEN capture[p].confirmed - 1 ELSE before]
PublishFragment(p) ==
    LET me == capture[p] IN
    /\ IsUp(p) /\ me.fragment < me.next
    /\ fragments' = IF IsSent(p, me.fragment) THEN Append(fragments, Event(p, me.fragment, me.sentFragment)) ELSE fragments
    /\ capture' = [capture EXCEPT ![p].fragment = @ + 1, ![p].sentFragment = IF IsSent(p, me.fragment) THEN me.fragment ELSE @]
    /\ UNCHANGED <<servers, entry, starts, refused, changes, consumers, readers>>
PublishChange(p) ==
    LET me == capture[p]
        isRouted == IsSent(p, me.change) /\ wal[me.server][me.change].kind # "other" IN
    /\ IsUp(p) /\ me.change < me.next
    /\ changes' = IF isRouted THEN Append(changes, Event(p, me.change, me.sentChange)) ELSE changes
    /\ capture' = [capture EXCEPT ![p].change = @ + 1, ![p].sentChange = IF isRouted THEN me.change ELSE @]
    /\ UNCHANGED <<servers, entry, starts, refused, fragments, consumers, readers>>

(* capture.wire.standby_status. Held until the last transaction was sent again: capture.wire.history_check.ResendCheck. *)
Published(p) == Min({capture[p].fragment, capture[p].change}) - 1
IsHeld(p) == capture[p].confirmed <= capture[p].last.lsn /\ capture[p].next <= capture[p].last.lsn
Confirm(p) ==
    LET me == capture[p]
        at == Min({ack, Published(p)}) + 1 IN
    /\ me.state = "running" /\ ~IsHeld(p) /\ slot[me.server].at < at
    /\ slot' = [slot EXCEPT ![me.server].at = at]
    /\ UNCHANGED <<wal, server, newest, sent, entry, processes, topics, consumers, readers>>

(* The connection is lost; what is queued may still be published. *)
Disconnect(p) ==
    /\ IsUp(p) /\ capture[p].state = "running" /\ starts < MaxStarts
    /\ capture' = [capture EXCEPT ![p].state = "lost"]
    /\ UNCHANGED <<servers, entry, starts, refused, topics, consumers, readers>>
Kill(p) ==
    /\ IsUp(p) /\ capture[p].state # "opened" /\ starts < MaxStarts
    /\ capture' = [capture EXCEPT ![p] = Down]
    /\ UNCHANGED <<servers, entry, starts, refused, topics, consumers, readers>>
(* PublishFence.enforce: it finds another claim, and discards what is queued. *)
NoticeFence(p) ==
    /\ IsUp(p) /\ capture[p].fenced /\ ~Has("no fence")
    /\ capture' = [capture EXCEPT ![p] = Down]
    /\ UNCHANGED <<servers, entry, starts, refused, topics, consumers, readers>>
(* CapturedSource.release: stopped, with everything confirmed by the brokers. *)
Release(p) ==
    /\ IsUp(p) /\ capture[p].state = "running" /\ ~IsQueued(p) /\ starts < MaxStarts
    /\ entry' = [capture[p].before EXCEPT !.holder = 0]
    /\ capture' = Fence([capture EXCEPT ![p] = Down], p)
    /\ UNCHANGED <<servers, starts, refused, topics, consumers, readers>>

-----------------------------------------------------------------------------
(* The writers, and the tracking job: each reads all that there is, at any moment. *)

(* shape_log.shape_chain *)
RECURSIVE Stored(_, _)
Stored(state, events) ==
    IF events = <<>> THEN state
    ELSE LET event == Head(events)
             isNext == event.lsn > state.cursor /\ (event.start \/ event.follows <= state.cursor)
             next == [state EXCEPT !.cursor = event.lsn, !.stored = @ \cup {<<event.lsn, event.record>>}] IN
         Stored(IF isNext THEN next ELSE state, Tail(events))
Unread(topic, read) == SubSeq(topic, read + 1, Len(topic))
Store ==
    /\ writer.read < Len(changes)
    /\ writer' = [Stored(writer, Unread(changes, writer.read)) EXCEPT !.read = Len(changes)]
    /\ ever' = ever \cup writer'.stored
    /\ UNCHANGED <<servers, entry, processes, topics, tracker, ack, readers>>

(* tracking.fragment_chain, and the shape's group, which takes what it has seen as done. *)
RECURSIVE Tracked(_, _)
Tracked(state, events) ==
    IF events = <<>> \/ state.isStuck THEN state
    ELSE LET event == Head(events)
             next == [state EXCEPT !.cursor = event.lsn,
                                   !.pending = IF event.record.kind = "other" THEN @ ELSE @ \cup {event.lsn}] IN
         Tracked(IF event.lsn <= state.cursor THEN state
                 ELSE IF event.follows > state.cursor THEN [state EXCEPT !.isStuck = TRUE] ELSE next, Tail(events))
(* tracking.flush_tracker *)
Track ==
    LET read == Tracked(tracker, Unread(fragments, tracker.read))
        pending == {l \in read.pending : l > writer.cursor} IN
    /\ tracker' = [read EXCEPT !.read = Len(fragments), !.pending = pending]
    /\ ack' = Max({ack, IF pending = {} THEN read.cursor ELSE Min(pending) - 1})
    /\ <<tracker, ack>>' # <<tracker, ack>>
    /\ UNCHANGED <<servers, entry, processes, topics, writer, ever, readers>>

-----------------------------------------------------------------------------
(* Snapshots, and the follower *)

(* The rows after the record at l, of records that are a set of <<lsn, record>>. *)
RowsOf(records, before, l) ==
    LET upTo == {x \in records : x[1] <= l}
        truncated == Max({0} \cup {x[1] : x \in {y \in upTo : y[2].kind = "truncate"}}) IN
    {x \in (IF truncated > 0 THEN {} ELSE before) \cup upTo : x[2].kind = "row" /\ x[1] > truncated}
WalOf(s) == {<<l, wal[s][l]>> : l \in 1..End(s)}
Fold(log, l) == RowsOf({x \in log.stored : x[1] > log.snapshot.lsn}, log.snapshot.rows, l)
Log == [stored |-> writer.stored, snapshot |-> snapshot]
LogEnd == Max({writer.cursor, snapshot.lsn})

(* capture with --new-epoch, on the newest server, which was refused: another source, under which the shape begins again.
   What is published of a source that was replaced, nobody reads. *)
NewEpoch(p) ==
    LET s == newest
        at == slot[s].at
        next == [epoch |-> entry.epoch + 1, switches |-> server[s].switches, start |-> at - 1, holder |-> starts + 1,
                 published |-> 0, ends |-> <<0, 0>>, claimed |-> <<>>] IN
    /\ refused /\ entry.epoch < MaxEpochs /\ IsPrimary(s) /\ slot[s].kind = "persistent"
    /\ entry' = next /\ starts' = starts + 1 /\ refused' = FALSE
    /\ capture' = [q \in Captures |-> IF q # p THEN Down ELSE
        Running([Opened(s, starts + 1, FALSE) EXCEPT !.before = next, !.last = [lsn |-> 0]])]
    /\ fragments' = <<>> /\ changes' = <<>>
    /\ writer' = [read |-> 0, cursor |-> 0, stored |-> {}]
    /\ tracker' = [read |-> 0, cursor |-> at - 1, pending |-> {}, isStuck |-> FALSE]
    /\ ack' = 0
    /\ ever' = ever \cup {x \in WalOf(s) : x[1] < at}
    /\ exported' = Nothing /\ snapshot' = Nothing
    /\ earlier' = IF snapshot = Nothing THEN earlier ELSE Log
    /\ UNCHANGED <<servers, follower>>

(* postgres.snapshot_export: the lock is acquired before the snapshot is taken. *)
Export(s) ==
    /\ HasReaders /\ snapshot = Nothing /\ exported = Nothing
    /\ \E p \in Captures : capture[p].state = "running" /\ capture[p].server = s /\ IsPrimary(s)
    /\ exported' = [server |-> s, lsn |-> End(s), isLocked |-> ~Has("locks late"), isRead |-> FALSE, rows |-> {}]
    /\ UNCHANGED <<servers, entry, processes, topics, consumers, snapshot, earlier, follower>>
(* A table that was truncated since is empty, also to an older snapshot. *)
ReadRows ==
    LET isTruncated == \E l \in exported.lsn + 1..End(exported.server) : wal[exported.server][l].kind = "truncate" IN
    /\ exported # Nothing /\ ~exported.isRead
    /\ exported' = [exported EXCEPT !.isRead = TRUE, !.isLocked = TRUE,
                                    !.rows = IF isTruncated THEN {} ELSE RowsOf(WalOf(exported.server), {}, exported.lsn)]
    /\ UNCHANGED <<servers, entry, processes, topics, consumers, snapshot, earlier, follower>>
(* postgres.published_wait: capture has published past it. *)
CommitSnapshot ==
    /\ exported # Nothing /\ exported.isRead
    /\ \E p \in Captures : IsUp(p) /\ capture[p].state = "running" /\ capture[p].server = exported.server
                           /\ (exported.lsn <= Published(p) \/ Has("commits snapshots early"))
    /\ snapshot' = [lsn |-> exported.lsn, rows |-> exported.rows] /\ exported' = Nothing
    /\ UNCHANGED <<servers, entry, processes, topics, consumers, earlier, follower>>

(* shape_log.table.shape_finder, shape_log.table.difference: a follower that began with the snapshot before gets the difference of
   what the log says that it has, and the rows of now. *)
Follow ==
    LET now == Fold(Log, LogEnd)
        had == Fold(earlier, follower.lsn) IN
    /\ HasReaders /\ snapshot # Nothing
    /\ follower' = [epoch |-> entry.epoch, lsn |-> LogEnd, rows |->
        IF follower = Nothing THEN now
        ELSE IF follower.epoch = entry.epoch \/ Has("ignores the epoch")
        THEN RowsOf({x \in writer.stored : x[1] > Max({follower.lsn, snapshot.lsn})}, follower.rows, LogEnd)
        ELSE (follower.rows \ (had \ now)) \cup (now \ had)]
    /\ follower' # follower
    /\ UNCHANGED <<servers, entry, processes, topics, consumers, exported, snapshot, earlier>>

-----------------------------------------------------------------------------
Init ==
    /\ wal = [s \in Servers |-> IF s > 1 THEN <<>> ELSE [l \in 1..Len(Written) |-> [by |-> 1, kind |-> Written[l]]]]
    /\ server = [s \in Servers |-> [isPrimary |-> s = 1, switches |-> <<>>, had |-> 99]]
    /\ sent = [s \in Servers |-> 0]
    /\ slot = [s \in Servers |-> IF s > 1 THEN NoSlot ELSE [kind |-> "persistent", at |-> 1, from |-> 1, since |-> 1]]
    /\ newest = 1
    /\ entry = [epoch |-> 1, switches |-> <<>>, start |-> 0, holder |-> 0, published |-> 0, ends |-> <<0, 0>>,
                claimed |-> <<>>]
    /\ capture = [p \in Captures |-> Down] /\ starts = 0 /\ refused = FALSE
    /\ fragments = <<>> /\ changes = <<>>
    /\ writer = [read |-> 0, cursor |-> 0, stored |-> {}]
    /\ tracker = [read |-> 0, cursor |-> 0, pending |-> {}, isStuck |-> FALSE]
    /\ ack = 0 /\ ever = {}
    /\ exported = Nothing /\ snapshot = IF IsEmpty THEN [lsn |-> 0, rows |-> {}] ELSE Nothing
    /\ earlier = Nothing /\ follower = Nothing

Next ==
    \/ Store \/ Track \/ ReadRows \/ CommitSnapshot \/ Follow
    \/ \E s \in Servers :
        \/ CreateSlot(s) \/ Export(s)
        \/ \E of \in Servers : \E end \in 0..End(of) : Promote(s, of, end)
        \/ \E kind \in DOMAIN Writes : Write(s, kind)
    \/ \E p \in Captures :
        \/ Claim(p) \/ EndClaim(p) \/ EndWait(p) \/ StopWaiting(p) \/ Begin(p) \/ Receive(p) \/ PublishFragment(p) \/ PublishChange(p)
        \/ Confirm(p) \/ Disconnect(p) \/ Kill(p) \/ NoticeFence(p) \/ Release(p) \/ NewEpoch(p)
        \/ \E s \in Servers : Open(p, s) \/ Reopen(p, s)

Fairness ==
    /\ WF_vars(Store) /\ WF_vars(Track) /\ WF_vars(ReadRows) /\ WF_vars(CommitSnapshot) /\ WF_vars(Follow)
    /\ \A s \in Servers : WF_vars(Export(s))
    /\ \A p \in Captures : WF_vars(Receive(p)) /\ WF_vars(PublishFragment(p)) /\ WF_vars(PublishChange(p)) /\ WF_vars(Confirm(p))
Spec == Init /\ [][Next]_vars /\ Fairness

-----------------------------------------------------------------------------
(* What must hold *)

IsSafe(s, l) == wal[s][l].kind = "other" \/ <<l, wal[s][l]>> \in ever
(* Servers whose WAL is the source's: those that it goes on with, or may go on with. *)
IsOfSource(s) == Continues(server[s].switches, entry.switches)
AckIsDurable ==
    \A s \in Servers : IsOfSource(s) =>
        \A l \in 1..Min({ack, End(s)}) : IsSafe(s, l) \/ (IsLater(s, entry.switches) /\ l >= server[s].switches[Len(entry.switches) + 1])
(* No server has a slot that is past what is durable, since the slot was created; also not one that was replaced. *)
SlotIsDurable ==
    \A s \in Servers : slot[s].kind # "none" => \A l \in slot[s].since..slot[s].at - 1 : l <= End(s) => IsSafe(s, l)
(* What was published is on the server that the source goes on with; else the source ends there, and is healed. *)
NothingLostIsContinued ==
    \A p \in Captures : capture[p].state = "running" /\ ~capture[p].fenced =>
        \A topic \in {fragments, changes} : \A i \in 1..Len(topic) :
            topic[i].lsn <= End(capture[p].server) /\ wal[capture[p].server][topic[i].lsn] = topic[i].record
(* A read has the rows of one server after a record. *)
IsRight(rows, l) == \E s \in Servers : l <= End(s) /\ rows = RowsOf(WalOf(s), {}, l)
ReadIsRight == snapshot # Nothing => IsRight(Fold(Log, LogEnd), LogEnd)
FollowerIsRight == follower # Nothing => IsRight(follower.rows, follower.lsn)
TimelineNeverGoesBack == [][entry'.epoch = entry.epoch => Continues(entry'.switches, entry.switches)]_vars
AckNeverGoesBack == [][entry'.epoch = entry.epoch => ack' >= ack]_vars

(* If a capture stays connected to the newest server. *)
IsCaptured == \E p \in Captures : IsUp(p) /\ capture[p].state = "running" /\ capture[p].server = newest /\ ~capture[p].fenced
IsConfirmed == IsPrimary(newest) => slot[newest].at = End(newest) + 1
EverythingIsConfirmed == <>[]IsCaptured => <>[]IsConfirmed
EverythingIsHealed ==
    (HasReaders /\ <>[]IsCaptured) => <>[](follower # Nothing /\ follower.rows = RowsOf(WalOf(newest), {}, End(newest)))
=============================================================================
