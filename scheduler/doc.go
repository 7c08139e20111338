// Package scheduler decides what is fetched when, and answers reads of an
// image's files.
//
// A [Reader] turns a read of a file into chunks. What the store has is copied
// from there. For the rest the scheduler asks other nodes for chunks, or fetches
// spans from the origin and has them decoded. It verifies each chunk, puts it
// into the store and copies it to the readers that wait for it, as soon as that
// chunk is there and not when the transfer ends. A store that is full or fails
// therefore makes reads uncached, not failed.
//
// Without a [Cluster] a node is by itself: every span comes from the origin.
//
// # One fetch for all
//
// A chunk that is on its way is in one table; whoever needs it joins. A reader
// whose context ends leaves without failing the others. A transfer that nobody
// wants any more is stopped.
//
// # Runs and slots
//
// Spans that wait are joined into runs: one request for neighbouring spans of a
// blob, decoded in one pass. A run has at most 8 MiB of encoded bytes, unless it
// starts with a span of class prefetch or backfill: those are as long as the
// neighbours go. A run starts when a slot is free. The most urgent class goes
// first, and each class but demand leaves slots free for the more urgent ones,
// so that a blocked reader never queues behind read-ahead. A span that waits is
// raised to the class of whoever joins. If a reader finds no slot or no memory
// left, a run is stopped that no reader waits for, and goes on later. A span that is deep in a transfer that
// already runs is fetched separately when a more urgent reader needs it.
//
// A deflate run needs the bytes before its first span, its window. They are a
// slice of another chunk, which the run gets within its own slot, so that runs
// don't wait for slots that other runs hold.
//
// # Read-ahead
//
// Reads that continue each other in a file are read ahead of, by a window that
// doubles up to [Config.Readahead]; so are files that are opened one after the
// other in the order in which a blob holds them. Reads at random are not.
//
// # Failures
//
// A demand read is retried until [Config.ReadDeadline] while the origin is
// unavailable. An origin that has no such blob or refuses it, and bytes that
// are corrupt, fail a span after three tries. A retry asks only for the spans
// that are still missing. Less urgent classes give up after three tries of any
// kind. A read that met its deadline answers other reads of the same chunk for a
// second, as the kernel asks twice for a page that it could not read ahead. Apart
// from that, failures are not remembered: the next read tries anew.
//
// # Levels
//
// In a cluster each span has a home in each rack and one in the whole cluster.
// A chunk that a node lacks is asked for at the rack home (level 0), which asks
// the cluster home (level 1), which asks the origin (level 2). A node that gets
// a request serves it as the home that it is asked as, whatever it believes
// itself, by [Scheduler.Serve].
//
// All who want a chunk at a node share the work, but for one rule: a request of
// a level waits only on work of a higher level, or begins it. Otherwise two nodes
// that take each other for the home would wait for each other. A reader of the
// node itself may wait on anything. A chunk that arrives by whatever work
// settles all that wait for it. Spans that need a window wait for chunks that
// need none, never the other way round. By level and by that, calls and runs
// have slots of their own, so that who waits can't take the slots of those he
// waits for. The next home in line is asked when one is down; when none is left,
// the node acts as the home itself. So a node that is cut off from all others
// still reads. chaos/sim checks all this over random views and crashes.
//
// Before a cluster home asks the origin, it asks a keeper of each chunk, by the
// [Directory], who is said to hold it, wherever that lies: what it is told is a
// hint, and whoever is often wrong is not believed for a while. Then it asks those
// that were home until lately, for what they hold; if it is not first in line itself,
// or the members have changed in the last seconds, those next in line, too; then nodes outside the cluster, if any are known to hold the
// image; and all of them again when the origin did not answer. A holder that has
// no time is waited for, up to a bound: the bytes are in the cluster already.
// None of these waits for anything, so it does not matter who asks whom.
// Whoever fetches a span from the origin keeps all its chunks, and goes on when
// those who asked have left.
//
// # Choice among peers
//
// Searches for many chunks that go to one peer travel in one call, and are
// answered one by one. A peer has a window of calls that grows while all goes
// well (AIMD). A node that is sending all that its link carries in a fraction of
// a second names nodes that it gave the chunk to, those in the asker's rack first,
// and to members of its own rack no others. A chunk that nobody else has waits for
// its turn to be sent, for a time that depends on the link: to ask again and again
// leaves links idle, and to ask elsewhere costs bytes across racks. What a node is
// being sent for one request it is not sent for another. Whoever is sent to another
// node waits there, for a moment, for the chunk that is on its way to it. Of two such
// holders at random the cheaper one is asked, by the peak of its recent times and by
// what is under way to it. What a node that is no member says it holds is not asked
// for, and the holders that one search tries are few, so redirects lead nowhere
// for long.
//
// A peer whose calls break three times in a row, or that answers what it must not
// once, is avoided for 1 to 30 seconds; then one call finds out whether it is back. One that is much slower than its
// rack is passed over as rack home. One that sent wrong bytes is not asked for
// ten minutes. A body that stops moving ends its call; what was missing is asked
// for elsewhere.
//
// A reader's chunk that takes longer than most did lately is asked for at a
// second peer, for a twentieth of the chunks at most and never in a way that
// reaches the origin. A chunk that was asked for as a prefetch is asked for again
// as a reader's when one waits for it.
//
// The registry's budget is the cluster's: each node keeps to its share. Runs that no
// reader waits for are few, and pause when the registry is slower than it can be:
// all nodes share its link. While a reader waits that a node knows of, its own or one
// of a node that has asked it, they are two for all nodes together.
//
// # Links
//
// What no reader waits for must not fill the links of those who do. While a
// reader's transfer is under way at a node, and a moment longer, only few other
// bodies are read at a time; those that are not read stop coming when the buffers
// of their connections are full. Package peer does the same where chunks are sent.
// Nothing waits for a turn for more than a tenth of a second, so this can't have
// nodes wait for each other.
//
// # Limits
//
// Transfers are decoded as they arrive. What they hold at one time is counted
// for each as its largest chunk and a fixed part for buffers, and kept below
// [Config.Memory]. At most GOMAXPROCS transfers decode at a time, the urgent
// ones first.
//
// The peers that are known are members, 8192 at most; who got what is remembered
// for 8192 chunks, 16 nodes each; other nodes may wait for 32 Ki chunks in each
// lane.
//
// The package knows nothing of images' trees, of file systems or of HTTP. It
// does not log: see [Trace] and [Stats].
package scheduler
