// Command porcupine is the second referee: it judges histories of keys with the model checker
// porcupine, by a model written apart from ours, and says where the two verdicts differ.
//
// It reads JSON lines from standard input, as `simulate --histories N` writes them. The last line
// that it prints counts the histories; the exit code is 0 only when all verdicts agree, and both
// verdicts occurred.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// answer is what was told; the fields that an operation does not have are nil.
type answer struct {
	Found *uint64 `json:"found"`
	Was   *bool   `json:"was"`
	Done  *bool   `json:"done"`
	Sum   *uint64 `json:"sum"`
}

type operation struct {
	Op     string  `json:"op"`
	A      *uint64 `json:"a"`
	B      *uint64 `json:"b"`
	Answer *answer `json:"answer"`
	Begin  int64   `json:"begin"`
	End    int64   `json:"end"`
}

type history struct {
	Seed         uint64      `json:"seed"`
	Key          string      `json:"key"`
	Linearizable bool        `json:"linearizable"`
	Ops          []operation `json:"ops"`
}

// entry is what a key holds.
type entry struct {
	there bool
	value uint64
}

func of(value *uint64) entry {
	if value == nil {
		return entry{}
	}
	return entry{true, *value}
}

// judge answers whether an answer is right for a state, and the state after the operation. No
// answer is right for any state: the operation may have happened.
func judge(before entry, op operation) (bool, entry) {
	told := op.Answer
	switch op.Op {
	case "get":
		return of(told.Found) == before, before
	case "put":
		return told == nil || *told.Was == before.there, of(op.A)
	case "insert":
		right := told == nil || *told.Done == !before.there
		if before.there {
			return right, before
		}
		return right, of(op.A)
	case "delete":
		return told == nil || *told.Was == before.there, entry{}
	case "update":
		right := told == nil || of(told.Found) == before
		if before.there {
			return right, of(op.A)
		}
		return right, before
	case "upsert":
		return told == nil || of(told.Found) == before, of(op.A)
	case "swap":
		same := before == of(op.B)
		right := told == nil || *told.Done == same && (same || of(told.Found) == before)
		if same {
			return right, of(op.A)
		}
		return right, before
	case "take":
		same := before == of(op.A)
		right := told == nil || *told.Done == same && (same || *told.Was == before.there)
		if same {
			return right, entry{}
		}
		return right, before
	case "carry":
		// It stays what it is, wherever it lies.
		switch {
		case told == nil:
			return true, before
		case *told.Done:
			return before == of(op.A), before
		default:
			return *told.Was == before.there, before
		}
	case "too large":
		// Numbers of values that are too large for a block, or for the reply of a batch, have these bits.
		return before.there && before.value&(1<<61|1<<60) != 0, before
	case "add":
		sum := *op.A
		if before.there {
			sum += before.value
		}
		return told == nil || *told.Sum == sum, entry{true, sum}
	}
	panic("no operation is named " + op.Op)
}

var model = porcupine.Model{
	Init: func() interface{} { return entry{} },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		right, after := judge(state.(entry), input.(operation))
		return right, after
	},
}

func check(h history) porcupine.CheckResult {
	var last int64
	for _, op := range h.Ops {
		last = max(last, op.Begin, op.End)
	}
	// What has no answer may happen at any time until the end, or after everything else, where
	// nobody sees it. Those that overlap have clients of their own.
	ops := make([]porcupine.Operation, 0, len(h.Ops))
	for client, op := range h.Ops {
		end := op.End
		if end < 0 {
			end = last + 1
		}
		ops = append(ops, porcupine.Operation{
			ClientId: client, Input: op, Call: op.Begin, Return: end,
		})
	}
	return porcupine.CheckOperationsTimeout(model, ops, time.Minute)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	var good, bad, differ int
	for lines.Scan() {
		var h history
		if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
			fmt.Fprintln(os.Stderr, "a line is no history:", err)
			os.Exit(1)
		}
		// A minute without a verdict is as bad as another one.
		result := check(h)
		switch {
		case result == porcupine.Ok && h.Linearizable:
			good++
		case result == porcupine.Illegal && !h.Linearizable:
			bad++
		default:
			differ++
			fmt.Printf("DIFFER: seed %d, %s: porcupine says %s, our checker %v\n  %s\n",
				h.Seed, h.Key, result, h.Linearizable, lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "the histories cannot be read:", err)
		os.Exit(1)
	}
	fmt.Printf("porcupine agrees on %d histories: %d linearizable, %d not; disagrees on %d\n",
		good+bad, good, bad, differ)
	if differ > 0 || good == 0 || bad == 0 {
		os.Exit(1)
	}
}
