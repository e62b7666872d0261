package sockets

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Offsets in a message as the filter sees it, in bytes: a netlink header of 16, struct inet_diag_msg, the attribute
// INET_DIAG_PROTOCOL in 8, then INET_DIAG_INFO with a header of 4 (net/ipv4/inet_diag.c, inet_diag_handler_get_info).
const (
	atMessage    = 16
	atAttributes = atMessage + lengthMessage
	atInfo       = atAttributes + 8
	atReceived   = atInfo + 4 + offsetBytesReceived
)

// loopback is the source address of our own test connections.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// jump jumps to pass, to drop, or over the next instructions.
type jump struct {
	condition bpf.JumpTest
	value     uint32
	to        int
}

// The targets of a jump, besides a number of instructions to skip.
const (
	toPass = -1 - iota
	toDrop
)

// filter makes the kernel pass only the messages of one local port whose client sent at least a startup packet, so that
// thousands of bare connects a second do not wake the process. Messages from our own address always pass, and so do
// those with another layout.
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
	// The filter loads words in network byte order; the kernel writes attributes in the machine's.
	attribute := [2]byte{}
	binary.NativeEndian.PutUint16(attribute[:], attributeInfo)
	low, high := [2]uint32{atReceived + 1, atReceived}, []uint32{atReceived + 2, atReceived + 4, atReceived + 6}
	if attribute[1] == attributeInfo { // big-endian
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
		jump{bpf.JumpGreaterOrEqual, uint32(contract.MinStartupPacketBytes), toPass},
	)
	return assemble(steps)
}

// assemble appends the two endings to the steps: drop, which the last step falls through to, and pass.
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
