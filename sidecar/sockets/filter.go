package sockets

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Where things are in a message as the filter sees it, in bytes: a netlink header of 16, struct inet_diag_msg, the attribute
// INET_DIAG_PROTOCOL in 8, then INET_DIAG_INFO with a header of 4 (net/ipv4/inet_diag.c, inet_diag_handler_get_info).
const (
	atMessage    = 16
	atAttributes = atMessage + lengthMessage
	atInfo       = atAttributes + 8
	atReceived   = atInfo + 4 + offsetBytesReceived
)

// loopback is where our own tests of the reports come from.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// jump goes to pass, to drop, or over the next instructions.
type jump struct {
	condition bpf.JumpTest
	value     uint32
	to        int
}

// The places that a jump may go to, besides a number of instructions to skip.
const (
	toPass = -1 - iota
	toDrop
)

// filter makes the kernel pass on the messages of one local port only, and of those not the ones whose client sent less than
// a startup packet: under thousands of bare connects a second nobody is woken. What comes from our own address passes all the same, and
// so does a message of another layout.
func filter(port uint16) ([]bpf.RawInstruction, error) {
	address := loopback.As4()
	steps := []any{
		bpf.LoadAbsolute{Off: atMessage + offsetSourcePort, Size: 2},
		jump{bpf.JumpNotEqual, uint32(port), toDrop},
		bpf.LoadAbsolute{Off: atMessage + offsetFamily, Size: 1},
		jump{bpf.JumpNotEqual, unix.AF_INET, 2},
		bpf.LoadAbsolute{Off: atMessage + offsetDestination, Size: 4},
		jump{bpf.JumpEqual, binary.BigEndian.Uint32(address[:]), toPass},
	}
	// The filter loads words in the byte order of the network; the kernel writes attributes in that of the machine.
	attribute := [2]byte{}
	binary.NativeEndian.PutUint16(attribute[:], attributeInfo)
	low, high := [2]uint32{atReceived + 1, atReceived}, []uint32{atReceived + 2, atReceived + 4, atReceived + 6}
	if attribute[1] == attributeInfo { // the highest byte comes first
		low, high = [2]uint32{atReceived + 6, atReceived + 7}, []uint32{atReceived, atReceived + 2, atReceived + 4}
	}
	steps = append(steps,
		bpf.LoadAbsolute{Off: atInfo + 2, Size: 2},
		jump{bpf.JumpNotEqual, uint32(binary.BigEndian.Uint16(attribute[:])), toPass},
	)
	for _, offset := range high { // the counter is below 64 KiB: the rest of its 64 bits is zero
		steps = append(steps, bpf.LoadAbsolute{Off: offset, Size: 2}, jump{bpf.JumpNotEqual, 0, toPass})
	}
	steps = append(steps,
		bpf.LoadAbsolute{Off: low[0], Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 8},
		bpf.TAX{},
		bpf.LoadAbsolute{Off: low[1], Size: 1},
		bpf.ALUOpX{Op: bpf.ALUOpOr},
		jump{bpf.JumpGreaterOrEqual, uint32(contract.ShortestStartupPacket), toPass},
	)
	return assemble(steps)
}

// assemble puts the two ends after the steps: drop, which the last step falls through to, and pass.
func assemble(steps []any) ([]bpf.RawInstruction, error) {
	program := make([]bpf.Instruction, 0, len(steps)+2)
	for i, step := range steps {
		switch s := step.(type) {
		case jump:
			skip := s.to
			switch s.to {
			case toDrop:
				skip = len(steps) - i - 1
			case toPass:
				skip = len(steps) - i
			}
			program = append(program, bpf.JumpIf{Cond: s.condition, Val: s.value, SkipTrue: uint8(skip)})
		case bpf.Instruction:
			program = append(program, s)
		}
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: 0xffffffff}))
	if err != nil {
		return nil, fmt.Errorf("assemble the kernel's filter: %w", err)
	}
	return raw, nil
}
