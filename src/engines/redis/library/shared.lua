-- Names shared by the files of the library. Each file is loaded as a block of its own, because Lua allows only 200
-- local variables at a time. What a file declares as `local` is private to it; everything else that it defines must be
-- declared here, because Redis rejects a library that sets global variables.

-- queue.lua
local db, pack, unpackAt, concat, spread, sub, byte
local register, call, verbs
local PLAIN, HEAD, LAST, MAX_ARGUMENTS
local DONE, DEAD_LETTERED, NOT_FOUND, NOT_RESERVED, LEASE_LOST, RESERVED, TOKEN_REQUIRED, LATER, NO_CAPACITY
local six, fromSix, partsOf, spreadCall, fieldValues, membersBetween, firstMember, eachGroup, sortMembers, rangeOf
local LARGE, withoutBody, storeElement, deleteElement, readFront, readFronts
local openQueue, queueNamed, useName, namesOf, createQueue, saveQueue
local add, remove, store, delete, flush, flushIfLarge, firstMoment, firstDue, noteDue, noteExpiry
local retentionOf, deadLetterPolicy, retryDelay

-- groups.lua
local NEVER, WAITING, TOUCHED, HELD, POPPED, OVERDUE
local findGroup, groupName, createGroup, createGroups
local readElement, stateOf, groupsIn, elementMember, writeElement, changeGroup, newElement

-- deliveries.lua
local NO_TOKEN, NOBODY, LEASES_AT_ONCE, EXPIRED_AT_ONCE, MAX_COPIED
local memberTail, waitingMember, leaseMember, memberOf, readRecord, recordText, reasonIn, untouched, findDelivery
local isReservedUntil
local release, finish, removeDelivery, removeWaiting, failTry, expireElements
local noteLease, firstLease, endLeases, endAllLeases

-- insert.lua
local timingOf, timingText, put, putOnce

-- outbox.lua
local ONLY_NAMED, MARK_MS
local addToOutbox, writeEntries, nameDestinations, wantedEntries

-- take.lua
local PAGE, LARGEST_REPLY, TAKE_HEAD
local isTouched, readElementsAt, removeFirst, unlistExpiries, firstMaturity
local hasTaken, finishPops, undoTake, undoPart, rereadTake

-- settle.lua
local moveToDeadLetters

-- read.lua
local countQueue

-- list.lua
local removeTaken

-- session.lua
local takesOf, withoutTaken
